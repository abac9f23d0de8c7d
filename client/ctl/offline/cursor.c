/*
 * tokctl cursor: the edits of a cursor, on files. Everything is checked before the first byte is
 * written, so that -o may name the file that was read; then what has changed is said.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/cursor_show.h"
#include "client/ctl/offline/stream.h"
#include "daemon/catalog/stream_schedule.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static int refuse(const char *path, const struct fault *why)
{
	return ctl_fail("%s: %s: %s", path, why->field, why->text);
}

__attribute__((format(printf, 1, 2))) static void note(const char *text, ...)
{
	va_list args;

	fputs("tokctl: ", stderr);
	va_start(args, text);
	vfprintf(stderr, text, args);
	va_end(args);
	fputc('\n', stderr);
}

/* ---- new ---- */

static int new (int argc, char **argv)
{
	const char *config = NULL, *to = NULL;
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "output", .letter = 'o', .value = &to},
	};
	struct ctl_stream s;

	int n = ctl_options(argc, argv, options, COUNT(options));

	if (n < 0)
		return CTL_USAGE;
	if (n != 1 || !config || !to)
		return ctl_usage("cursor", "new needs -c FILE, one STREAM and -o G");
	if (!ctl_stream_open(&s, config, argv[1]))
		return CTL_FAILED;
	bool done = ctl_cursor_write(&s.stream->begin, to);

	ctl_stream_close(&s);
	return done ? CTL_OK : CTL_FAILED;
}

/* ---- what the edits share ---- */

struct edit {
	const char *from, *to; /* files */
	char **argument;       /* [arguments], behind the file */
	int arguments;
	const char *at, *position, *samples, *config; /* options as they were given, or NULL */
	bool json;
};

/* Edits *@c. Returns an exit status, after an error line if it is not CTL_OK. */
typedef int edit_function(struct cursor *c, const struct edit *e);

/* Writes the edited cursor and says how it differs. */
static int finish(const struct cursor *before, const struct cursor *after, const struct edit *e)
{
	struct ctl_out out = {0};

	if (!ctl_cursor_write(after, e->to))
		return CTL_FAILED;
	ctl_cursor_compare(&out, before, after, e->json);
	return ctl_finish(&out, CTL_OK);
}

static int edit_file(const struct edit *e, edit_function *run)
{
	struct cursor before = {0}, after = {0};
	int status = CTL_FAILED;

	if (!ctl_cursor_read(&before, e->from, NULL))
		; /* said already */
	else if (!cursor_copy(&after, &before))
		ctl_fail("out of memory");
	else {
		status = run(&after, e);
		if (status == CTL_OK)
			status = finish(&before, &after, e);
	}
	cursor_free(&before);
	cursor_free(&after);
	return status;
}

/* Reads a position or a number of samples. */
static int read_number(const char *option, const char *text, uint64_t *value)
{
	if (ctl_number(text, value))
		return CTL_OK;
	return ctl_usage("cursor", "--%s %s: must be a whole number below 2^64", option, text);
}

/* A position to act from: @text, or the least there is. */
static int read_at(const struct cursor *c, const char *text, uint64_t *at)
{
	*at = cursor_mix_at(c);
	return text ? read_number("at", text, at) : CTL_OK;
}

/* Index of the dataset called @name, or -1 after an error. */
static int find(const struct cursor *c, const char *name)
{
	int d = cursor_find(c, name);

	if (d >= 0 && strcmp(c->dataset[d].name, name) == 0)
		return d;
	ctl_fail("the cursor has no dataset %s; `tokctl cursor show` lists them", name);
	return -1;
}

/* ---- seek, skip ---- */

static int seek(struct cursor *c, const struct edit *e)
{
	struct fault why;
	uint64_t position;
	int status = read_number("to", e->position, &position);

	if (status != CTL_OK)
		return status;
	return cursor_seek(c, position, &why) ? CTL_OK : refuse(e->from, &why);
}

static int skip(struct cursor *c, const struct edit *e)
{
	struct fault why;
	uint64_t samples;
	int status = read_number("samples", e->samples, &samples);

	if (status != CTL_OK)
		return status;
	return cursor_skip(c, samples, &why) ? CTL_OK : refuse(e->from, &why);
}

/* ---- mix ---- */

/* "D=W"; a name may have '=' itself. Returns an exit status. */
static int read_weight(const struct cursor *c, char *argument, double *weights, bool *given)
{
	char *equals = strrchr(argument, '=');
	double weight;

	if (!equals || !ctl_weight(equals + 1, &weight))
		return ctl_usage("cursor",
			"'%s' must be DATASET=WEIGHT, a finite weight of 0 or more", argument);
	*equals = 0;
	int d = find(c, argument);

	if (d < 0)
		return CTL_FAILED;
	if (given[d])
		return ctl_fail("dataset %s has two weights; give it one", argument);
	weights[d] = weight;
	given[d] = true;
	return CTL_OK;
}

/* What an operator may have forgotten: datasets that are served now, or were to be. */
static void note_unnamed(const struct cursor *c, const bool *given)
{
	for (uint32_t d = 0; d < c->datasets; d++)
		for (uint32_t i = 0; !given[d] && i < c->segments; i++)
			if (ctl_units(c->segment[i], d) > 0) {
				note("dataset %s is not named: it gets weight 0",
					c->dataset[d].name);
				break;
			}
}

static int mix(struct cursor *c, const struct edit *e)
{
	double weights[LIMIT_DATASETS] = {0};
	bool given[LIMIT_DATASETS] = {0};
	struct fault why;
	uint64_t at;
	int status = read_at(c, e->at, &at);

	for (int i = 0; status == CTL_OK && i < e->arguments; i++)
		status = read_weight(c, e->argument[i], weights, given);
	if (status != CTL_OK)
		return status;
	note_unnamed(c, given);
	if (!cursor_mix(c, at, weights, &why))
		return refuse(e->from, &why);
	if (!e->at)
		note("the mix acts from position %" PRIu64 " on", at);
	return CTL_OK;
}

/* ---- add, remove ---- */

static int add_missing(struct cursor *c, const char *from, const struct stream *stream)
{
	unsigned added = 0;

	for (uint32_t i = 0; i < stream->config->datasets; i++) {
		struct cursor_source source;
		struct fault why;

		dataset_source(&stream->dataset[i], &source);
		if (cursor_find(c, source.name) >= 0)
			continue;
		if (!cursor_add(c, &source, &why))
			return refuse(from, &why);
		added++;
		note("added dataset %s, %" PRIu64 " windows; `tokctl cursor mix` gives it a weight",
			source.name, source.windows);
	}
	if (!added)
		note("the cursor has every dataset of the stream already");
	return CTL_OK;
}

static int add(struct cursor *c, const struct edit *e)
{
	struct fault why;
	struct ctl_stream s;
	int status;

	if (!ctl_stream_open(&s, e->config, c->stream))
		return CTL_FAILED;
	status = cursor_belongs(c, &s.stream->begin, &why) ? add_missing(c, e->from, s.stream)
							   : refuse(e->from, &why);
	ctl_stream_close(&s);
	return status;
}

static int remove_dataset(struct cursor *c, const struct edit *e)
{
	struct fault why;
	uint64_t at;
	int status = read_at(c, e->at, &at), d;

	if (status != CTL_OK)
		return status;
	d = find(c, e->argument[0]);
	if (d < 0)
		return CTL_FAILED;
	if (!cursor_remove(c, (uint32_t)d, at, &why))
		return refuse(e->from, &why);
	if (!e->at)
		note("dataset %s is served no more from position %" PRIu64 " on",
			c->dataset[d].name, at);
	return CTL_OK;
}

/* ---- schedule ---- */

static int schedule(struct cursor *c, const struct edit *e)
{
	struct fault fault;
	struct ctl_stream s;
	int status = CTL_OK;

	if (!ctl_stream_open(&s, e->config, c->stream))
		return CTL_FAILED;
	if (!cursor_belongs(c, &s.stream->begin, &fault))
		status = refuse(e->from, &fault);
	else if (!stream_schedule(s.stream, c, &fault))
		status = ctl_fail("%s", fault.text);
	ctl_stream_close(&s);
	return status;
}

/* ---- the table ---- */

/* Arguments behind the cursor file, and which of the options it takes (and, but for --at, needs).
 */
struct edit_command {
	const char *name;
	edit_function *run;
	int least, most;
	const char *needs;
	bool at, position, samples, config;
};

static const struct edit_command edits[] = {
	{"seek", seek, 0, 0, "one cursor file, --to POSITION and -o G", .position = true},
	{"skip", skip, 0, 0, "one cursor file, --samples N and -o G", .samples = true},
	{"mix", mix, 1, INT_MAX, "one cursor file, DATASET=WEIGHT... and -o G", .at = true},
	{"add", add, 0, 0, "one cursor file, -c FILE and -o G", .config = true},
	{"remove", remove_dataset, 1, 1, "one cursor file, one DATASET and -o G", .at = true},
	{"schedule", schedule, 0, 0, "one cursor file, -c FILE and -o G", .config = true},
};

static int run_edit(const struct edit_command *command, int argc, char **argv)
{
	struct edit e = {.from = NULL};
	struct ctl_option options[4] = {
		{.name = "output", .letter = 'o', .value = &e.to},
		{.name = "json", .flag = &e.json},
	};
	unsigned count = 2;

	if (command->at)
		options[count++] = (struct ctl_option){.name = "at", .value = &e.at};
	if (command->position)
		options[count++] = (struct ctl_option){.name = "to", .value = &e.position};
	if (command->samples)
		options[count++] = (struct ctl_option){.name = "samples", .value = &e.samples};
	if (command->config)
		options[count++] =
			(struct ctl_option){.name = "config", .letter = 'c', .value = &e.config};

	int n = ctl_options(argc, argv, options, count);

	if (n < 0)
		return CTL_USAGE;
	if (n - 1 < command->least || n - 1 > command->most || !e.to ||
		(command->position && !e.position) || (command->samples && !e.samples) ||
		(command->config && !e.config))
		return ctl_usage("cursor", "%s needs %s", command->name, command->needs);
	e.from = argv[1];
	e.argument = argv + 2;
	e.arguments = n - 1;
	return edit_file(&e, command->run);
}

int ctl_cursor(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} others[] = {{"new", new}, {"show", ctl_cursor_show}, {"diff", ctl_cursor_diff}};
	const char *name = argc > 1 ? argv[1] : "";

	if (argc > 1)
		argv[1] = argv[0]; /* errors name the command */
	for (size_t i = 0; i < COUNT(others); i++)
		if (strcmp(others[i].name, name) == 0)
			return others[i].run(argc - 1, argv + 1);
	for (size_t i = 0; i < COUNT(edits); i++)
		if (strcmp(edits[i].name, name) == 0)
			return run_edit(&edits[i], argc - 1, argv + 1);
	return ctl_usage(
		"cursor", "needs one of new, show, diff, seek, skip, mix, add, remove, schedule");
}
