/*
 * tokctl cursor: creates and edits cursor files. An edit is checked completely before anything is
 * written, so -o may name the input file. Then the changes are printed.
 */
#include "client/ctl/offline/offline.h"

#include "daemon/catalog/catalog.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <string.h>

enum verb { SEEK, SKIP, MIX, ADD, REMOVE, SCHEDULE, NEW, VERBS };
enum { OUTPUT, CONFIG, NUMBER /* --to, --samples or --at */, JSON, OPTIONS };

static const struct ctl_command verbs[VERBS];

static int new_cursor(const struct ctl_arguments *a)
{
	struct ctl_stream s;

	if (!ctl_stream_open(&s, ctl_text(a, CONFIG), a->argument[0]))
		return CTL_FAILED;
	bool done = ctl_cursor_write(&s.stream->begin, ctl_text(a, OUTPUT));

	ctl_stream_close(&s);
	return done ? CTL_OK : CTL_FAILED;
}

/* ---- edits ---- */

/* Notes datasets that the user may have forgotten: those with a weight now or in a pending mix. */
static void note_unnamed(const struct cursor *before, const struct cursor_edit *mix)
{
	for (uint32_t d = 0; d < before->datasets; d++) {
		const char *name = before->dataset[d].name;
		bool named = false, serves = false;

		for (uint32_t i = 0; i < mix->names; i++)
			named |= strcmp(mix->name[i], name) == 0;
		for (uint32_t s = cursor_past(before); s < before->segments; s++)
			serves |= ctl_units(before->segment[s], d) > 0;
		if (serves && !named)
			ctl_note("dataset %s is not named and gets weight 0", name);
	}
}

static bool schedule(struct cursor *c, const struct stream *stream, const char *path)
{
	struct fault fault;

	if (!cursor_belongs(c, &stream->begin, &fault))
		ctl_fail("%s: %s: %s", path, fault.field, fault.text);
	else if (!stream_schedule(stream, c, &fault))
		ctl_fail("%s", fault.text); /* it names the config's line */
	else
		return true;
	return false;
}

/* Applies all verbs but `schedule`. Returns an exit status. */
static int apply(struct cursor *c, const struct cursor *before, const struct ctl_arguments *a,
	const struct ctl_stream *s)
{
	static const enum cursor_edit_kind kinds[] = {
		CURSOR_SEEK, CURSOR_SKIP, CURSOR_MIX, CURSOR_ADD, CURSOR_REMOVE};
	enum verb verb = (enum verb)(a->command - verbs);
	double weight[LIMIT_DATASETS];
	struct cursor_edit edit = {.kind = kinds[verb],
		.number = ctl_number(a, NUMBER, CURSOR_SOON),
		.names = (uint32_t)a->arguments - 1,
		.name = (const char *const *)a->argument + 1,
		.weight = weight,
		.stream = s->stream ? &s->stream->begin : NULL};
	struct fault fault;
	uint64_t at;

	if (verb == MIX && ctl_weights(a, 1, weight) != CTL_OK)
		return CTL_USAGE;
	if (!cursor_apply(c, &edit, &at, &fault))
		return ctl_fail("%s: %s: %s", a->argument[0], fault.field, fault.text);
	if (verb == MIX)
		note_unnamed(before, &edit);
	if ((verb == MIX || verb == REMOVE) && !ctl_given(a, NUMBER))
		ctl_note("the new mix begins at position %" PRIu64, at);
	return CTL_OK;
}

/* Writes the edited cursor and prints how it differs. */
static int edit(const struct ctl_arguments *a)
{
	const char *path = a->argument[0];
	struct cursor before = {0}, after = {0};
	struct ctl_stream s = {0};
	struct emit e = {.json = ctl_given(a, JSON)};
	int status = CTL_FAILED;

	if (!ctl_cursor_read(&before, path, NULL) ||
		(ctl_given(a, CONFIG) && !ctl_stream_open(&s, ctl_text(a, CONFIG), before.stream)))
		; /* the error was printed */
	else if (!cursor_copy(&after, &before))
		ctl_fail(PHRASE_MEMORY);
	else if (a->command == &verbs[SCHEDULE])
		status = schedule(&after, s.stream, path) ? CTL_OK : CTL_FAILED;
	else
		status = apply(&after, &before, a, &s);
	if (status == CTL_OK && !ctl_cursor_write(&after, ctl_text(a, OUTPUT)))
		status = CTL_FAILED;
	if (status == CTL_OK)
		ctl_cursor_compare(&e, &before, &after);
	ctl_stream_close(&s);
	cursor_free(&before);
	cursor_free(&after);
	return emit_end(&e, status);
}

/* ---- the tables ---- */

#define OUT(phrase)                                                                                \
	{                                                                                          \
		OPTION_TEXT("output", "OUT", phrase), .letter = 'o', .required = true              \
	}
#define OUT_OR_IN OUT("file to write the cursor to; may be the input file")
#define AT                                                                                         \
	{                                                                                          \
		OPTION_NUMBER("at", "POSITION", 0, UINT64_MAX,                                     \
			"first sample of the change, a multiple of 1024; default: the earliest "   \
			"possible")                                                                \
	}

static const struct ctl_option options[VERBS][OPTIONS] = {
	[NEW] = {[OUTPUT] = OUT("file to write the cursor to"), [CONFIG] = {CTL_CONFIG_NEEDED}},
	[SEEK] = {[OUTPUT] = OUT_OR_IN,
		[NUMBER] = {OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX,
				    "position of the next sample to serve"),
			.required = true},
		[JSON] = {CTL_JSON_OPTION}},
	[SKIP] = {[OUTPUT] = OUT_OR_IN,
		[NUMBER] = {OPTION_NUMBER("samples", "N", 0, UINT64_MAX,
				    "number of samples to skip; they are never served"),
			.required = true},
		[JSON] = {CTL_JSON_OPTION}},
	[MIX] = {[OUTPUT] = OUT_OR_IN, [NUMBER] = AT, [JSON] = {CTL_JSON_OPTION}},
	[ADD] = {[OUTPUT] = OUT_OR_IN, [CONFIG] = {CTL_CONFIG_NEEDED}, [JSON] = {CTL_JSON_OPTION}},
	[REMOVE] = {[OUTPUT] = OUT_OR_IN, [NUMBER] = AT, [JSON] = {CTL_JSON_OPTION}},
	[SCHEDULE] =
		{[OUTPUT] = OUT_OR_IN, [CONFIG] = {CTL_CONFIG_NEEDED}, [JSON] = {CTL_JSON_OPTION}},
};

#define VERB(verb, function) .options = options[verb], .count = OPTIONS, .run = function

static const struct ctl_command verbs[VERBS] = {
	[NEW] = {VERB(NEW, new_cursor), .name = "cursor new", .arguments = "STREAM",
		.help = "create the cursor of a stream's beginning"},
	[SEEK] = {VERB(SEEK, edit), .name = "cursor seek", .arguments = "FILE",
		.help = "move a cursor to another position of the same order"},
	[SKIP] = {VERB(SKIP, edit), .name = "cursor skip", .arguments = "FILE",
		.help = "skip the next samples: they are never served"},
	[MIX] = {VERB(MIX, edit), .name = "cursor mix", .arguments = "FILE DATASET=WEIGHT...",
		.most = 1 + LIMIT_DATASETS, .help = "change the weights of the datasets"},
	[ADD] = {VERB(ADD, edit), .name = "cursor add", .arguments = "FILE",
		.help = "add the config's new datasets to a cursor, without weight"},
	[REMOVE] = {VERB(REMOVE, edit), .name = "cursor remove", .arguments = "FILE DATASET",
		.help = "stop serving a dataset"},
	[SCHEDULE] = {VERB(SCHEDULE, edit), .name = "cursor schedule", .arguments = "FILE",
		.help = "replace the pending mixes with the config's `schedule:`"},
};

const struct ctl_command ctl_cursor = {
	.name = "cursor",
	.help = "create, print, compare and edit cursor files",
	.subcommands = (const struct ctl_command *const[]){&verbs[NEW], &ctl_cursor_show,
		&ctl_cursor_diff, &verbs[SEEK], &verbs[SKIP], &verbs[MIX], &verbs[ADD],
		&verbs[REMOVE], &verbs[SCHEDULE], NULL},
};
