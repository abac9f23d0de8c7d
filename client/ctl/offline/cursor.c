/*
 * tokctl cursor: creates and edits cursor files. An edit is checked completely before anything is
 * written, so -o may name the input file. Then the changes are printed.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/share.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/cursor_compare.h"
#include "client/ctl/offline/cursor_diff.h"
#include "client/ctl/offline/cursor_show.h"
#include "client/ctl/offline/stream.h"
#include "daemon/catalog/stream_schedule.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *path, const struct fault *fault)
{
	return ctl_fail("%s: %s: %s", path, fault->field, fault->text);
}

enum { AT, TO, SAMPLES, CONFIG, OUTPUT, JSON, OPTIONS };

/* ---- new ---- */

static int new_cursor(const struct ctl_arguments *a)
{
	struct ctl_stream s;

	if (!ctl_stream_open(&s, ctl_text(a, CONFIG), a->argument[0]))
		return CTL_FAILED;
	bool done = ctl_cursor_write(&s.stream->begin, ctl_text(a, OUTPUT));

	ctl_stream_close(&s);
	return done ? CTL_OK : CTL_FAILED;
}

/* ---- common to all edits ---- */

/* Edits *@c. Returns an exit status; unless it is CTL_OK, an error was printed. */
typedef int edit_function(struct cursor *c, const struct ctl_arguments *a);

static const char *from(const struct ctl_arguments *a)
{
	return a->argument[0];
}

/* Writes the edited cursor and prints how it differs. */
static int finish(
	const struct cursor *before, const struct cursor *after, const struct ctl_arguments *a)
{
	struct ctl_out out = {0};

	if (!ctl_cursor_write(after, ctl_text(a, OUTPUT)))
		return CTL_FAILED;
	ctl_cursor_compare(&out, before, after, ctl_given(a, JSON));
	return ctl_finish(&out, CTL_OK);
}

static int edit_file(const struct ctl_arguments *a, edit_function *run)
{
	struct cursor before = {0}, after = {0};
	int status = CTL_FAILED;

	if (!ctl_cursor_read(&before, from(a), NULL))
		; /* the error was printed */
	else if (!cursor_copy(&after, &before))
		ctl_fail(PHRASE_MEMORY);
	else {
		status = run(&after, a);
		if (status == CTL_OK)
			status = finish(&before, &after, a);
	}
	cursor_free(&before);
	cursor_free(&after);
	return status;
}

/* Applies @edit. Returns an exit status. */
static int apply(struct cursor *c, const struct ctl_arguments *a, const struct cursor_edit *edit,
	uint64_t *acts_from)
{
	struct fault fault;

	return cursor_apply(c, edit, acts_from, &fault) ? CTL_OK : refuse(from(a), &fault);
}

/* ---- seek, skip ---- */

static int seek(struct cursor *c, const struct ctl_arguments *a)
{
	const struct cursor_edit edit = {.kind = CURSOR_SEEK, .number = ctl_number(a, TO, 0)};
	uint64_t at;

	return apply(c, a, &edit, &at);
}

static int skip(struct cursor *c, const struct ctl_arguments *a)
{
	const struct cursor_edit edit = {.kind = CURSOR_SKIP, .number = ctl_number(a, SAMPLES, 0)};
	uint64_t at;

	return apply(c, a, &edit, &at);
}

/* ---- mix ---- */

/* Reads "DATASET=WEIGHT", where the name may contain '='. Returns an exit status. */
static int read_weight(const struct ctl_arguments *a, char *argument, double *weight)
{
	char *equals = strrchr(argument, '=');

	if (!equals || !ctl_parse_decimal(equals + 1, weight))
		return ctl_usage(a->command,
			"'%s': must be DATASET=WEIGHT; the weight must be " PHRASE_WEIGHT,
			argument);
	*equals = 0;
	return CTL_OK;
}

/* Finds datasets that the user may have forgotten: those with a weight now or in a pending mix. */
static void find_unnamed(const struct cursor *c, const struct cursor_edit *edit, bool *unnamed)
{
	for (uint32_t d = 0; d < c->datasets; d++) {
		bool serves = false;
		uint32_t i = 0;

		while (i < edit->names && strcmp(edit->name[i], c->dataset[d].name) != 0)
			i++;
		for (uint32_t s = cursor_past(c); s < c->segments; s++)
			serves |= ctl_units(c->segment[s], d) > 0;
		unnamed[d] = i == edit->names && serves;
	}
}

static int mix(struct cursor *c, const struct ctl_arguments *a)
{
	struct cursor_edit edit = {.kind = CURSOR_MIX,
		.number = ctl_number(a, AT, CURSOR_SOON),
		.names = (uint32_t)a->arguments - 1,
		.name = (const char *const *)a->argument + 1};
	double *weight = calloc(edit.names, sizeof(*weight));
	int status = weight ? CTL_OK : ctl_fail(PHRASE_MEMORY);
	bool unnamed[LIMIT_DATASETS] = {0};
	uint64_t at;

	edit.weight = weight;
	for (uint32_t i = 0; status == CTL_OK && i < edit.names; i++)
		status = read_weight(a, a->argument[1 + i], &weight[i]);
	if (status == CTL_OK) {
		find_unnamed(c, &edit, unnamed);
		status = apply(c, a, &edit, &at);
	}
	for (uint32_t d = 0; status == CTL_OK && d < c->datasets; d++)
		if (unnamed[d])
			ctl_note("dataset %s is not named and gets weight 0", c->dataset[d].name);
	if (status == CTL_OK && !ctl_given(a, AT))
		ctl_note("the new mix begins at position %" PRIu64, at);
	free(weight);
	return status;
}

/* ---- add, remove ---- */

static int add(struct cursor *c, const struct ctl_arguments *a)
{
	struct cursor_edit edit = {.kind = CURSOR_ADD};
	uint32_t before = c->datasets;
	struct ctl_stream s;
	uint64_t at;
	int status;

	if (!ctl_stream_open(&s, ctl_text(a, CONFIG), c->stream))
		return CTL_FAILED;
	edit.stream = &s.stream->begin;
	status = apply(c, a, &edit, &at);
	for (uint32_t d = before; status == CTL_OK && d < c->datasets; d++)
		ctl_note("added dataset %s (%" PRIu64
			 " windows) without weight; give it one with `tokctl cursor mix`",
			c->dataset[d].name, c->order[d].windows);
	if (status == CTL_OK && c->datasets == before)
		ctl_note("the cursor already has every dataset of the stream");
	ctl_stream_close(&s);
	return status;
}

static int remove_dataset(struct cursor *c, const struct ctl_arguments *a)
{
	const char *name = a->argument[1];
	const struct cursor_edit edit = {.kind = CURSOR_REMOVE,
		.number = ctl_number(a, AT, CURSOR_SOON),
		.names = 1,
		.name = &name};
	uint64_t at;
	int status = apply(c, a, &edit, &at);

	if (status == CTL_OK && !ctl_given(a, AT))
		ctl_note("dataset %s is not served from position %" PRIu64 " on", name, at);
	return status;
}

/* ---- schedule ---- */

static int schedule(struct cursor *c, const struct ctl_arguments *a)
{
	struct fault fault;
	struct ctl_stream s;
	int status = CTL_OK;

	if (!ctl_stream_open(&s, ctl_text(a, CONFIG), c->stream))
		return CTL_FAILED;
	if (!cursor_belongs(c, &s.stream->begin, &fault))
		status = refuse(from(a), &fault);
	else if (!stream_schedule(s.stream, c, &fault))
		status = ctl_fail("%s", fault.text);
	ctl_stream_close(&s);
	return status;
}

/* ---- the tables ---- */

#define OUTPUT_OPTION                                                                              \
	{                                                                                          \
		.name = "output", .letter = 'o', .required = true, .value = "OUT",                 \
		.help = "file to write the cursor to; may be the input file"                       \
	}
#define AT_OPTION                                                                                  \
	{                                                                                          \
		.name = "at", .kind = CTL_NUMBER, .value = "POSITION", .most = UINT64_MAX,         \
		.help = "first sample of the change, a multiple of 1024; default: the earliest "   \
			"possible"                                                                 \
	}

static const struct ctl_option new_options[OPTIONS] = {
	[CONFIG] = CTL_CONFIG_NEEDED,
	[OUTPUT] = {.name = "output",
		.letter = 'o',
		.required = true,
		.value = "OUT",
		.help = "file to write the cursor to"},
};
static const struct ctl_option seek_options[OPTIONS] = {
	[OUTPUT] = OUTPUT_OPTION,
	[TO] = {.name = "to",
		.kind = CTL_NUMBER,
		.required = true,
		.value = "POSITION",
		.most = UINT64_MAX,
		.help = "position of the next sample to serve"},
	[JSON] = CTL_JSON_OPTION,
};
static const struct ctl_option skip_options[OPTIONS] = {
	[OUTPUT] = OUTPUT_OPTION,
	[SAMPLES] = {.name = "samples",
		.kind = CTL_NUMBER,
		.required = true,
		.value = "N",
		.most = UINT64_MAX,
		.help = "number of samples to skip; they are never served"},
	[JSON] = CTL_JSON_OPTION,
};
static const struct ctl_option mix_options[OPTIONS] = {
	[OUTPUT] = OUTPUT_OPTION, [AT] = AT_OPTION, [JSON] = CTL_JSON_OPTION};
static const struct ctl_option config_options[OPTIONS] = {
	[OUTPUT] = OUTPUT_OPTION, [CONFIG] = CTL_CONFIG_NEEDED, [JSON] = CTL_JSON_OPTION};

static int seek_file(const struct ctl_arguments *a)
{
	return edit_file(a, seek);
}

static int skip_file(const struct ctl_arguments *a)
{
	return edit_file(a, skip);
}

static int mix_file(const struct ctl_arguments *a)
{
	return edit_file(a, mix);
}

static int add_file(const struct ctl_arguments *a)
{
	return edit_file(a, add);
}

static int remove_file(const struct ctl_arguments *a)
{
	return edit_file(a, remove_dataset);
}

static int schedule_file(const struct ctl_arguments *a)
{
	return edit_file(a, schedule);
}

static const struct ctl_command new_command = {
	.name = "cursor new",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "create the cursor of a stream's beginning",
	.examples = CTL_EXAMPLES(
		{"begin train", "tokctl cursor new train -c tokend.yaml -o new.cursor"}),
	.options = new_options,
	.count = OPTIONS,
	.run = new_cursor,
};

static const struct ctl_command seek_command = {
	.name = "cursor seek",
	.arguments = "FILE",
	.least = 1,
	.most = 1,
	.help = "move a cursor to another position of the same order",
	.about = "Sets the position of the next sample. Each mix begins where it did: after a seek "
		 "backwards, past mixes are pending again. To take them back, take a cursor saved "
		 "before them.",
	.examples = CTL_EXAMPLES({"go on from position 8192",
		"tokctl cursor seek begin.cursor --to 8192 -o seek.cursor"}),
	.options = seek_options,
	.count = OPTIONS,
	.run = seek_file,
};

static const struct ctl_command skip_command = {
	.name = "cursor skip",
	.arguments = "FILE",
	.least = 1,
	.most = 1,
	.help = "skip the next samples: they are never served",
	.examples = CTL_EXAMPLES({"skip 4096 samples",
		"tokctl cursor skip run.cursor --samples 4096 -o skipped.cursor"}),
	.options = skip_options,
	.count = OPTIONS,
	.run = skip_file,
};

static const struct ctl_command mix_command = {
	.name = "cursor mix",
	.arguments = "FILE DATASET=WEIGHT...",
	.least = 2,
	.most = CTL_ANY,
	.help = "change the weights of the datasets",
	.about = "Announces a mix with these weights, which are relative to each other. Datasets "
		 "that are not named get weight 0. It replaces all pending mixes. A stream with "
		 "the key epochs: has no weights to change.",
	.examples = CTL_EXAMPLES({"use half web and half code from the earliest position on",
		"tokctl cursor mix run.cursor web=0.5 code=0.5 -o mixed.cursor"}),
	.options = mix_options,
	.count = OPTIONS,
	.run = mix_file,
};

static const struct ctl_command add_command = {
	.name = "cursor add",
	.arguments = "FILE",
	.least = 1,
	.most = 1,
	.help = "add the config's new datasets to a cursor, without weight",
	.about = "Adds the datasets that the config's stream has and the cursor lacks. They are "
		 "served once `tokctl cursor mix` gives them a weight.",
	.examples = CTL_EXAMPLES({"add the datasets that tokend.yaml now has",
		"tokctl cursor add run.cursor -c tokend.yaml -o added.cursor"}),
	.options = config_options,
	.count = OPTIONS,
	.run = add_file,
};

static const struct ctl_command remove_command = {
	.name = "cursor remove",
	.arguments = "FILE DATASET",
	.least = 2,
	.most = 2,
	.help = "stop serving a dataset",
	.about = "Gives the dataset weight 0 from a position on, in all pending mixes too. The "
		 "other datasets keep their ratio. The cursor keeps the dataset in its list.",
	.examples = CTL_EXAMPLES(
		{"stop serving code", "tokctl cursor remove run.cursor code -o removed.cursor"}),
	.options = mix_options,
	.count = OPTIONS,
	.run = remove_file,
};

static const struct ctl_command schedule_command = {
	.name = "cursor schedule",
	.arguments = "FILE",
	.least = 1,
	.most = 1,
	.help = "replace the pending mixes with the config's `schedule:`",
	.about = "Applies schedule: and max_epochs: of the config's stream to a run that has "
		 "begun. The present mix stays until the first step of the schedule.",
	.examples = CTL_EXAMPLES({"apply an edited schedule",
		"tokctl cursor schedule run.cursor -c tokend.yaml -o scheduled.cursor"}),
	.options = config_options,
	.count = OPTIONS,
	.run = schedule_file,
};

const struct ctl_command ctl_cursor = {
	.name = "cursor",
	.help = "create, print, compare and edit cursor files",
	.about =
		"A cursor is the state of a run: stream, position and mixes. Trainers store it in "
		"the model's checkpoint; a job that saves under a tag also has the daemon write it "
		"to STATE_DIR/STREAM/RUN/TAG.cursor. An edit makes a new cursor: everything is "
		"checked before OUT is written, and each change is printed as old | new. It takes "
		"effect when a job attaches at the new cursor. `tokctl mix` and `tokctl skip` "
		"change a running job instead.",
	.subcommands =
		(const struct ctl_command *const[]){
			&new_command,
			&ctl_cursor_show,
			&ctl_cursor_diff,
			&seek_command,
			&skip_command,
			&mix_command,
			&add_command,
			&remove_command,
			&schedule_command,
			NULL,
		},
};
