/*
 * tokctl cursor: the edits of a cursor, on files. Everything is checked before the first byte is written, so
 * that -o may name the file that was read.
 */
#include "ctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static int refuse(const char *path, const struct cursor_why *why)
{
	return ctl_fail("%s: %s: %s", path, why->field, why->text);
}

static void note(const char *text)
{
	fprintf(stderr, "tokctl: %s\n", text);
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

/* ---- show ---- */

static const char *const shuffles[] = {
	[ORDER_NONE] = "none", [ORDER_GLOBAL] = "global", [ORDER_BLOCK] = "block"};

static uint64_t units_of(const struct order_segment *segment, uint32_t d)
{
	return d < segment->datasets ? segment->units[d] : 0;
}

static void json_dataset(struct ctl_out *out, const struct cursor *c, uint32_t d)
{
	ctl_put(out, d ? ",{\"name\":" : "{\"name\":");
	ctl_put_string(out, c->dataset[d].name);
	ctl_put(out, ",");
	ctl_put_pair(out, "windows", c->order[d].windows);
	ctl_put(out, ",");
	ctl_put_pair(out, "digest", c->dataset[d].digest);
	ctl_put(out, ",\"shuffle\":");
	ctl_put_string(out, shuffles[c->order[d].shuffle]);
	ctl_put(out, ",");
	ctl_put_pair(out, "block", c->order[d].block);
	ctl_put(out, ",");
	ctl_put_pair(out, "group", c->order[d].group);
	ctl_put(out, c->order[d].slide ? ",\"slide\":true}" : ",\"slide\":false}");
}

static void json_list(struct ctl_out *out, const char *key, const uint64_t *values, uint32_t n, uint32_t of)
{
	ctl_put(out, ",\"");
	ctl_put(out, key);
	ctl_put(out, "\":[");
	for (uint32_t i = 0; i < of; i++) {
		ctl_put(out, i ? "," : "");
		ctl_put_number(out, i < n ? values[i] : 0);
	}
	ctl_put(out, "]");
}

static void json_segments(struct ctl_out *out, const struct cursor *c)
{
	ctl_put(out, ",\"segments\":[");
	for (uint32_t i = 0; i < c->segments; i++) {
		const struct order_segment *s = c->segment[i];

		ctl_put(out, i ? ",{" : "{");
		ctl_put_pair(out, "start", s->start);
		ctl_put(out, i ? ",\"pending\":true" : ",\"pending\":false");
		json_list(out, "units", s->units, s->datasets, c->datasets);
		json_list(out, "base", s->base, s->datasets, c->datasets);
		ctl_put(out, "}");
	}
	ctl_put(out, "]");
}

static void show_json(struct ctl_out *out, const struct cursor *c)
{
	const struct {
		const char *name;
		uint64_t value;
	} numbers[] = {
		{"seed", c->seed},
		{"seq_len", c->seq_len},
		{"extra", c->extra},
		{"stride", c->stride},
		{"epochs", c->epochs},
		{"samples", c->samples},
		{"next", c->next},
	};

	ctl_put(out, "{\"stream\":");
	ctl_put_string(out, c->stream);
	for (size_t i = 0; i < COUNT(numbers); i++) {
		ctl_put(out, ",");
		ctl_put_pair(out, numbers[i].name, numbers[i].value);
	}
	ctl_put(out, ",\"end\":");
	if (c->epochs || c->samples)
		ctl_put_number(out, cursor_end(c));
	else
		ctl_put(out, "null");
	ctl_put(out, ",\"datasets\":[");
	for (uint32_t d = 0; d < c->datasets; d++)
		json_dataset(out, c, d);
	ctl_put(out, "]");
	json_segments(out, c);
	ctl_put(out, "}\n");
}

/* A share of a segment as text. */
static void put_percent(struct ctl_out *out, const struct order_segment *s, uint32_t d)
{
	double share = 100.0 * (double)units_of(s, d) / (double)s->prefix[s->padded];
	char text[32];

	snprintf(text, sizeof(text), "  %10.6f %%", share);
	ctl_put_left(out, text, 24);
}

static void show_mix(struct ctl_out *out, const struct cursor *c)
{
	char head[64];
	size_t width = 7;

	for (uint32_t d = 0; d < c->datasets; d++)
		if (ctl_width(c->dataset[d].name) > width)
			width = ctl_width(c->dataset[d].name);
	ctl_put_left(out, "dataset", width);
	ctl_put(out, "               windows  digest          ");
	for (uint32_t i = 0; i < c->segments; i++) {
		snprintf(head, sizeof(head), "  %sfrom %" PRIu64, i ? "pending " : "", c->segment[i]->start);
		ctl_put_left(out, head, 24);
	}
	ctl_put(out, "\n");
	for (uint32_t d = 0; d < c->datasets; d++) {
		ctl_put_left(out, c->dataset[d].name, width);
		ctl_put_right(out, c->order[d].windows, 22);
		snprintf(head, sizeof(head), "  %016" PRIx64, c->dataset[d].digest);
		ctl_put(out, head);
		for (uint32_t i = 0; i < c->segments; i++)
			put_percent(out, c->segment[i], d);
		ctl_put(out, "\n");
	}
}

static void show_text(struct ctl_out *out, const struct cursor *c)
{
	char line[256];

	ctl_put(out, "stream   ");
	ctl_put_left(out, c->stream, 0);
	snprintf(line, sizeof(line),
		"\nseed     %" PRIu64 "\nwindow   %" PRIu64 " + %" PRIu64 " tokens, stride %" PRIu64
		"\nnext     %" PRIu64 "\n",
		c->seed, c->seq_len, c->extra, c->stride, c->next);
	ctl_put(out, line);
	if (c->epochs)
		snprintf(line, sizeof(line), "end      %" PRIu64 " (epochs %" PRIu64 ")\n", cursor_end(c),
			c->epochs);
	else if (c->samples)
		snprintf(line, sizeof(line), "end      %" PRIu64 "\n", c->samples);
	else
		snprintf(line, sizeof(line), "end      none\n");
	ctl_put(out, line);
	snprintf(line, sizeof(line), "mix      from %" PRIu64, c->segment[0]->start);
	ctl_put(out, line);
	if (c->segments > 1)
		snprintf(line, sizeof(line), ", another pending from %" PRIu64 "\n\n", c->segment[1]->start);
	ctl_put(out, c->segments > 1 ? line : ", none pending\n\n");
	show_mix(out, c);
}

static int show(int argc, char **argv)
{
	bool json = false;
	const struct ctl_option options[] = {{.name = "json", .flag = &json}};
	struct ctl_out out = {0};
	struct cursor c;
	int n = ctl_options(argc, argv, options, COUNT(options)), status = CTL_FAILED;

	if (n < 0)
		return CTL_USAGE;
	if (n != 1)
		return ctl_usage("cursor", "show needs one cursor file");
	if (ctl_cursor_read(&c, argv[1], NULL)) {
		(json ? show_json : show_text)(&out, &c);
		status = ctl_finish(&out, CTL_OK);
	}
	cursor_free(&c);
	return status;
}

/* ---- diff ---- */

struct diff {
	struct ctl_out out;
	bool json, differs;
};

static void differ_text(struct diff *d, const char *field, const char *left, const char *right)
{
	d->differs = true;
	if (d->json) {
		ctl_put(&d->out, "{\"field\":");
		ctl_put_string(&d->out, field);
		ctl_put(&d->out, ",\"left\":");
		ctl_put_string(&d->out, left);
		ctl_put(&d->out, ",\"right\":");
		ctl_put_string(&d->out, right);
		ctl_put(&d->out, "}\n");
		return;
	}
	ctl_put_left(&d->out, field, 0);
	ctl_put(&d->out, ": ");
	ctl_put_left(&d->out, left, 0);
	ctl_put(&d->out, " | ");
	ctl_put_left(&d->out, right, 0);
	ctl_put(&d->out, "\n");
}

static void diff_number(struct diff *d, const char *field, uint64_t left, uint64_t right)
{
	if (left == right)
		return;
	d->differs = true;
	if (d->json) {
		ctl_put(&d->out, "{\"field\":");
		ctl_put_string(&d->out, field);
		ctl_put(&d->out, ",");
		ctl_put_pair(&d->out, "left", left);
		ctl_put(&d->out, ",");
		ctl_put_pair(&d->out, "right", right);
		ctl_put(&d->out, "}\n");
		return;
	}
	ctl_put_left(&d->out, field, 0);
	ctl_put(&d->out, ": ");
	ctl_put_number(&d->out, left);
	ctl_put(&d->out, " | ");
	ctl_put_number(&d->out, right);
	ctl_put(&d->out, "\n");
}

static void diff_dataset(struct diff *d, const struct cursor *a, const struct cursor *b, uint32_t i)
{
	const struct order_dataset *x = &a->order[i], *y = &b->order[i];
	const struct {
		const char *what;
		uint64_t left, right;
	} numbers[] = {
		{"windows", x->windows, y->windows},
		{"digest", a->dataset[i].digest, b->dataset[i].digest},
		{"block", x->block, y->block},
		{"group", x->group, y->group},
		{"slide", x->slide, y->slide},
	};
	char field[128];

	if (strcmp(a->dataset[i].name, b->dataset[i].name) != 0) {
		snprintf(field, sizeof(field), "dataset %" PRIu32, i);
		differ_text(d, field, a->dataset[i].name, b->dataset[i].name);
		return;
	}
	for (size_t k = 0; k < COUNT(numbers); k++) {
		snprintf(field, sizeof(field), "dataset %s: %s", a->dataset[i].name, numbers[k].what);
		diff_number(d, field, numbers[k].left, numbers[k].right);
	}
	snprintf(field, sizeof(field), "dataset %s: shuffle", a->dataset[i].name);
	if (x->shuffle != y->shuffle)
		differ_text(d, field, shuffles[x->shuffle], shuffles[y->shuffle]);
}

static void diff_lists(struct diff *d, const char *prefix, const char *what, const uint64_t *left, uint32_t n,
	const uint64_t *right, uint32_t m)
{
	char field[64];

	for (uint32_t i = 0; i < n || i < m; i++) {
		snprintf(field, sizeof(field), "%s%s[%" PRIu32 "]", prefix, what, i);
		diff_number(d, field, i < n ? left[i] : 0, i < m ? right[i] : 0);
	}
}

static void diff_segment(
	struct diff *d, const char *prefix, const struct order_segment *a, const struct order_segment *b)
{
	char field[64];

	if (!a && !b)
		return;
	snprintf(field, sizeof(field), "%smix", prefix);
	if (!a || !b) {
		differ_text(d, field, a ? "present" : "absent", b ? "present" : "absent");
		return;
	}
	snprintf(field, sizeof(field), "%sstart", prefix);
	diff_number(d, field, a->start, b->start);
	diff_lists(d, prefix, "units", a->units, a->datasets, b->units, b->datasets);
	diff_lists(d, prefix, "base", a->base, a->datasets, b->base, b->datasets);
	diff_lists(d, prefix, "phase", a->phase, a->padded, b->phase, b->padded);
}

static int diff_cursors(const struct cursor *a, const struct cursor *b, bool json)
{
	struct diff d = {.json = json};
	const struct {
		const char *field;
		uint64_t left, right;
	} numbers[] = {
		{"seed", a->seed, b->seed},
		{"seq_len", a->seq_len, b->seq_len},
		{"extra", a->extra, b->extra},
		{"stride", a->stride, b->stride},
		{"epochs", a->epochs, b->epochs},
		{"samples", a->samples, b->samples},
		{"next", a->next, b->next},
		{"datasets", a->datasets, b->datasets},
	};

	if (strcmp(a->stream, b->stream) != 0)
		differ_text(&d, "stream", a->stream, b->stream);
	for (size_t i = 0; i < COUNT(numbers); i++)
		diff_number(&d, numbers[i].field, numbers[i].left, numbers[i].right);
	for (uint32_t i = 0; i < a->datasets && i < b->datasets; i++)
		diff_dataset(&d, a, b, i);
	diff_segment(&d, "", a->segment[0], b->segment[0]);
	diff_segment(&d, "pending ", a->segments > 1 ? a->segment[1] : NULL,
		b->segments > 1 ? b->segment[1] : NULL);
	return ctl_finish(&d.out, d.differs ? CTL_FAILED : CTL_OK);
}

static int diff(int argc, char **argv)
{
	bool json = false;
	const struct ctl_option options[] = {{.name = "json", .flag = &json}};
	int n = ctl_options(argc, argv, options, COUNT(options)), status = CTL_FAILED;
	struct cursor a = {0}, b = {0};

	if (n < 0)
		return CTL_USAGE;
	if (n != 2)
		return ctl_usage("cursor", "diff needs two cursor files");
	if (ctl_cursor_read(&a, argv[1], NULL) && ctl_cursor_read(&b, argv[2], NULL))
		status = diff_cursors(&a, &b, json);
	cursor_free(&a);
	cursor_free(&b);
	return status;
}

/* ---- seek ---- */

static int seek(int argc, char **argv)
{
	const char *position_text = NULL, *to = NULL;
	const struct ctl_option options[] = {
		{.name = "to", .value = &position_text},
		{.name = "output", .letter = 'o', .value = &to},
	};
	int n = ctl_options(argc, argv, options, COUNT(options)), status = CTL_FAILED;
	struct cursor_why why;
	struct cursor c;
	uint64_t position;

	if (n < 0)
		return CTL_USAGE;
	if (n != 1 || !position_text || !to)
		return ctl_usage("cursor", "seek needs one cursor file, --to POSITION and -o G");
	if (!ctl_number(position_text, &position))
		return ctl_usage("cursor", "--to must be a whole number below 2^64");
	if (ctl_cursor_read(&c, argv[1], NULL)) {
		if (!cursor_seek(&c, position, &why))
			refuse(argv[1], &why);
		else if (ctl_cursor_write(&c, to))
			status = CTL_OK;
	}
	cursor_free(&c);
	return status;
}

/* ---- mix ---- */

/* "D=W"; a name may have '=' itself. Returns an exit status. */
static int read_weight(const struct cursor *c, char *argument, double *weights, bool *given)
{
	char *equals = strrchr(argument, '=');
	double weight;

	if (!equals || !ctl_weight(equals + 1, &weight))
		return ctl_usage(
			"cursor", "'%s' must be DATASET=WEIGHT, a finite weight of 0 or more", argument);
	*equals = 0;
	int d = cursor_find(c, argument);

	if (d < 0 || strcmp(c->dataset[d].name, argument) != 0)
		return ctl_fail("the cursor has no dataset %s; `tokctl cursor show` lists them", argument);
	if (given[d])
		return ctl_fail("dataset %s has two weights; give it one", argument);
	weights[d] = weight;
	given[d] = true;
	return CTL_OK;
}

/* What an operator may have forgotten. */
static void note_unnamed(const struct cursor *c, const bool *given)
{
	for (uint32_t d = 0; d < c->datasets; d++)
		if (!given[d] && units_of(c->segment[0], d) > 0)
			fprintf(stderr, "tokctl: dataset %s is not named: it gets weight 0\n",
				c->dataset[d].name);
}

static int mix_cursor(
	struct cursor *c, const char *from, const char *at_text, char **arguments, int n, const char *to)
{
	double weights[LIMIT_DATASETS] = {0};
	bool given[LIMIT_DATASETS] = {0};
	struct cursor_why why;
	uint64_t at = cursor_mix_at(c);

	if (at_text && !ctl_number(at_text, &at))
		return ctl_usage("cursor", "--at must be a whole number below 2^64");
	for (int i = 0; i < n; i++) {
		int status = read_weight(c, arguments[i], weights, given);

		if (status != CTL_OK)
			return status;
	}
	note_unnamed(c, given);
	if (!cursor_mix(c, at, weights, &why))
		return refuse(from, &why);
	if (!ctl_cursor_write(c, to))
		return CTL_FAILED;
	if (!at_text)
		fprintf(stderr, "tokctl: the mix acts from position %" PRIu64 " on\n", at);
	return CTL_OK;
}

static int mix(int argc, char **argv)
{
	const char *at = NULL, *to = NULL;
	const struct ctl_option options[] = {
		{.name = "at", .value = &at},
		{.name = "output", .letter = 'o', .value = &to},
	};
	int n = ctl_options(argc, argv, options, COUNT(options)), status = CTL_FAILED;
	struct cursor c;

	if (n < 0)
		return CTL_USAGE;
	if (n < 2 || !to)
		return ctl_usage("cursor", "mix needs one cursor file, DATASET=WEIGHT... and -o G");
	if (ctl_cursor_read(&c, argv[1], NULL))
		status = mix_cursor(&c, argv[1], at, argv + 2, n - 1, to);
	cursor_free(&c);
	return status;
}

/* ---- add ---- */

static int add_missing(struct cursor *c, const char *from, const struct stream *stream, const char *to)
{
	unsigned added = 0;

	for (uint32_t i = 0; i < stream->config->datasets; i++) {
		struct cursor_source source;
		struct cursor_why why;

		dataset_source(&stream->dataset[i], &source);
		if (cursor_find(c, source.name) >= 0)
			continue;
		if (!cursor_add(c, &source, &why))
			return refuse(from, &why);
		added++;
		fprintf(stderr,
			"tokctl: added dataset %s, %" PRIu64
			" windows; `tokctl cursor mix` gives it a weight\n",
			source.name, source.windows);
	}
	if (!added)
		note("the cursor has every dataset of the stream already");
	return ctl_cursor_write(c, to) ? CTL_OK : CTL_FAILED;
}

static int add(int argc, char **argv)
{
	const char *config = NULL, *to = NULL;
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "output", .letter = 'o', .value = &to},
	};
	int n = ctl_options(argc, argv, options, COUNT(options)), status = CTL_FAILED;
	struct ctl_stream s = {0};
	struct cursor_why why;
	struct cursor c;

	if (n < 0)
		return CTL_USAGE;
	if (n != 1 || !config || !to)
		return ctl_usage("cursor", "add needs one cursor file, -c FILE and -o G");
	if (ctl_cursor_read(&c, argv[1], NULL) && ctl_stream_open(&s, config, c.stream)) {
		status = cursor_belongs(&c, &s.stream->begin, &why) ? add_missing(&c, argv[1], s.stream, to)
								    : refuse(argv[1], &why);
		ctl_stream_close(&s);
	}
	cursor_free(&c);
	return status;
}

int ctl_cursor(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} edits[] = {
		{"new", new}, {"show", show}, {"diff", diff}, {"seek", seek}, {"mix", mix}, {"add", add}};

	for (size_t i = 0; argc > 1 && i < COUNT(edits); i++)
		if (strcmp(edits[i].name, argv[1]) == 0) {
			argv[1] = argv[0]; /* errors name the command */
			return edits[i].run(argc - 1, argv + 1);
		}
	return ctl_usage(argv[0], "needs one of new, show, diff, seek, mix, add");
}
