/*
 * tokctl cursor: creates, prints, compares and edits cursor files. An edit is checked completely
 * before anything is written, so -o may name the input file. Then the changes are printed, as by
 * `diff`.
 */
#include "client/ctl/offline/offline.h"

#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum verb { NEW, SHOW, DIFF, SEEK, SKIP, MIX, ADD, REMOVE, SCHEDULE, VERBS };
static const struct ctl_command verbs[VERBS];

/* ---- how two cursors differ ---- */

struct diff {
	struct emit *e;
	bool differs;
};

struct digits {
	char text[24];
};

static struct digits digits(uint64_t number)
{
	struct digits d;

	snprintf(d.text, sizeof(d.text), "%" PRIu64, number);
	return d;
}

/* Prints a difference, unless the values are equal: false. @text: they are not numbers. */
__attribute__((format(printf, 5, 6))) static bool compare(
	struct diff *d, bool text, const char *left, const char *right, const char *format, ...)
{
	char field[2 * LIMIT_NAME_BYTES];
	va_list args;

	if (strcmp(left, right) == 0)
		return false;
	d->differs = true;
	va_start(args, format);
	vsnprintf(field, sizeof(field), format, args);
	va_end(args);
	emit_text(d->e, "field", NULL, field);
	for (int i = 0; i < 2; i++)
		if (text)
			emit_text(d->e, i ? "right" : "left", NULL, i ? right : left);
		else
			emit_json(d->e, i ? "right" : "left", i ? right : left);
	emit_line(d->e, "%s: %s | %s", field, left, right);
	emit_row(d->e);
	return true;
}

#define texts(d, left, right, ...) compare(d, true, left, right, __VA_ARGS__)
#define numbers(d, left, right, ...)                                                               \
	compare(d, false, digits(left).text, digits(right).text, __VA_ARGS__)

static void compare_dataset(
	struct diff *d, const struct cursor *a, const struct cursor *b, uint32_t i)
{
	const struct cursor_dataset *left = &a->dataset[i], *right = &b->dataset[i];
	const struct order_dataset *x = &a->order[i], *y = &b->order[i];
	char parts[2][ORDER_PART_BYTES];

	if (i >= a->datasets || i >= b->datasets) { /* only one of the two has it */
		const bool is_left = i < a->datasets;
		char text[64];

		snprintf(text, sizeof(text), "%" PRIu64 " windows", (is_left ? x : y)->windows);
		texts(d, is_left ? text : "absent", is_left ? "absent" : text, "dataset %s",
			(is_left ? left : right)->name);
		return;
	}
	if (strcmp(left->name, right->name) != 0) {
		texts(d, left->name, right->name, "dataset %" PRIu32, i);
		return;
	}
	numbers(d, x->windows, y->windows, "dataset %s: windows", left->name);
	numbers(d, left->digest, right->digest, "dataset %s: digest", left->name);
	numbers(d, x->block, y->block, "dataset %s: block", left->name);
	numbers(d, x->group, y->group, "dataset %s: group", left->name);
	numbers(d, x->slide, y->slide, "dataset %s: slide", left->name);
	numbers(d, left->max_epochs, right->max_epochs, "dataset %s: max_epochs", left->name);
	texts(d, order_part_text(left->lo, left->hi, parts[0]),
		order_part_text(right->lo, right->hi, parts[1]), "dataset %s: part", left->name);
	texts(d, order_shuffles[x->shuffle], order_shuffles[y->shuffle], "dataset %s: shuffle",
		left->name);
}

enum { MIX_BYTES = LIMIT_DATASETS * (LIMIT_NAME_BYTES + 16) };

/* Writes "web 70.000000 %, code 30.000000 %". Returns @text. */
static char *mix_text(const struct cursor *c, const struct order_segment *s, char text[MIX_BYTES])
{
	size_t n = 0;

	for (uint32_t d = 0; d < s->datasets; d++)
		if (s->units[d] > 0)
			n += (size_t)snprintf(text + n, MIX_BYTES - n, "%s%s %.6f %%",
				n ? ", " : "", c->dataset[d].name, 100 * ctl_fraction(s, d));
	assert(n > 0 && n < MIX_BYTES);
	return text;
}

static void compare_mixes(struct diff *d, const struct cursor *a, const struct cursor *b)
{
	bool differed = false; /* so the counts of all later mixes differ */
	char left[MIX_BYTES], right[MIX_BYTES];

	for (uint32_t i = 0, j = 0; i < a->segments || j < b->segments;) {
		const struct order_segment *x = i < a->segments ? a->segment[i] : NULL,
					   *y = j < b->segments ? b->segment[j] : NULL;

		if (x && y && x->start != y->start)
			*(x->start < y->start ? &y : &x) = NULL;
		bool differs = texts(d, x ? mix_text(a, x, left) : "absent",
			y ? mix_text(b, y, right) : "absent", "mix from %" PRIu64,
			(x ? x : y)->start);

		if (x && y && !differs && !differed && !ctl_same_segment(x, y))
			differs = texts(d, "one", "another",
				"mix from %" PRIu64 ": units, samples served before, or roundings",
				x->start);
		/* A cursor may have had a mix of the other one's, before its first one. */
		differed |= differs && (x || y->start > a->segment[0]->start) &&
			    (y || x->start > b->segment[0]->start);
		i += x != NULL;
		j += y != NULL;
	}
}

/*
 * Prints how @b differs from @a, one difference per line. Leaves out differences that follow from
 * an earlier one: the counts and roundings of a mix after a different mix. True if they are equal.
 */
static bool compare_two(struct emit *e, const struct cursor *a, const struct cursor *b)
{
	struct diff d = {.e = e};

	texts(&d, a->stream, b->stream, "stream");
	numbers(&d, a->seed, b->seed, "seed");
	numbers(&d, a->seq_len, b->seq_len, "seq_len");
	numbers(&d, a->extra, b->extra, "extra");
	numbers(&d, a->stride, b->stride, "stride");
	numbers(&d, a->epochs, b->epochs, "epochs");
	numbers(&d, a->samples, b->samples, "samples");
	numbers(&d, a->next, b->next, "next");
	for (uint32_t i = 0; i < a->datasets || i < b->datasets; i++)
		compare_dataset(&d, a, b, i);
	compare_mixes(&d, a, b);
	return !d.differs;
}

/* ---- diff, of two or of several: which are the odd ones ---- */

/* Compares @n ≥ 3 cursors with one of those that are equal to more than half of all, otherwise with
 * the first. True if all are equal. */
static bool compare_all(struct emit *e, const struct cursor *c, char *const *path, int n)
{
	uint64_t *print = calloc((size_t)n, sizeof(*print)), alike = 0;
	int usual = 0;
	bool same = true;

	if (!print)
		return ctl_error(PHRASE_MEMORY);
	for (int i = 0; i < n; i++)
		print[i] = cursor_fingerprint(&c[i], 1, 1);
	for (int i = 0; i < n; i++) {
		uint64_t here = 0;

		for (int j = 0; j < n; j++)
			here += print[j] == print[i];
		if (i == 0 || 2 * here > (uint64_t)n) {
			usual = i;
			alike = here;
		}
	}
	for (int i = 0; i < n; i++) {
		if (print[i] == print[usual])
			continue;
		emit_line(e, "%s differs from %s, as which %" PRIu64 " of %d are:", path[i],
			path[usual], alike, n);
		emit_text(e, "odd", NULL, path[i]);
		emit_text(e, "usual", NULL, path[usual]);
		emit_number(e, "alike", NULL, alike);
		emit_row(e);
		compare_two(e, &c[usual], &c[i]);
		same = false;
	}
	free(print);
	return same;
}

static int diff(const struct ctl_arguments *a)
{
	static struct cursor *c; /* not freed: the process ends */
	struct emit e = {.json = ctl_given(a, "json")};
	bool good = (c = calloc((size_t)a->arguments, sizeof(*c))) || ctl_error(PHRASE_MEMORY);

	for (int i = 0; good && i < a->arguments; i++)
		good = ctl_cursor_read(&c[i], a->argument[i], NULL);
	if (good)
		good = a->arguments == 2 ? compare_two(&e, &c[0], &c[1])
					 : compare_all(&e, c, a->argument, a->arguments);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

/* ---- show: a cursor file, or the cursors in a checkpoint ---- */

/* A cursor in a checkpoint, and the first place where it was found. */
struct found {
	struct cursor cursor;
	uint64_t sum; /* the checksum in its bytes */
	char *path;
	uint64_t offset; /* in the file */
	uint64_t places; /* that have this cursor */
};

/* Cursors are found by their first bytes: as they are, as the text of a pickle (their bytes as
 * UTF-8), or in hex. */
struct search {
	struct found *found; /* [n], in the order of files and offsets */
	size_t n;
	uint64_t damaged; /* places that begin like a cursor, with a wrong checksum */
	bool failed;	  /* an error was printed */

	const char *path; /* of the file that is mapped */
	const unsigned char *from, *end;
	unsigned char unpacked[LIMIT_CURSOR_BYTES];
};

enum form { PLAIN, UTF8, HEX };

/* Decodes the bytes at @from, up to one that does not belong to the form, to @to ([@most]). Returns
 * their number. UTF8: pickle's protocol 2 stores bytes as a text of U+0000 to U+00FF. */
static size_t unpack(enum form form, const unsigned char *from, const unsigned char *end,
	unsigned char *to, size_t most)
{
	static const char digits[] = "0123456789abcdef";
	size_t n = 0;

	for (; n < most && from < end; n++) {
		unsigned char first = *from++, second = from < end ? *from : 0;
		const char *high = memchr(digits, first, 16), *low = memchr(digits, second, 16);

		if (form == PLAIN || (form == UTF8 && first < 0x80)) {
			to[n] = first;
			continue;
		}
		if (form == HEX ? !high || !low : (first & 0xfe) != 0xc2 || (second & 0xc0) != 0x80)
			break;
		to[n] = (unsigned char)(form == HEX ? (high - digits) << 4 | (low - digits)
						    : first << 6 | (second & 0x3f));
		from++;
	}
	return n;
}

enum verdict { NONE, DAMAGED, FOUND };

/* Keeps the cursor that is at @at in this form. */
static enum verdict look(struct search *s, enum form form, const unsigned char *at)
{
	struct found one = {.offset = (uint64_t)(at - s->from), .places = 1};
	size_t n = unpack(form, at, s->end, s->unpacked, CURSOR_HEAD_BYTES), same = 0;
	struct fault fault;

	/* The magic alone is common in some files, and to unpack all is slow. */
	if (!cursor_begins(s->unpacked, n))
		return NONE;
	n = unpack(form, at, s->end, s->unpacked, LIMIT_CURSOR_BYTES);
	n = cursor_length(s->unpacked, n);
	if (n == 0)
		return NONE;
	if (!cursor_decode(&one.cursor, s->unpacked, n, &fault))
		return DAMAGED;
	memcpy(&one.sum, s->unpacked + 8, sizeof(one.sum));
	while (same < s->n && s->found[same].sum != one.sum)
		same++;
	if (same < s->n) {
		s->found[same].places++;
		cursor_free(&one.cursor);
		return FOUND;
	}
	one.path = strdup(s->path);
	s->failed = !one.path && ctl_fail(PHRASE_MEMORY);
	s->failed = s->failed || !ctl_grow((void **)&s->found, s->n, sizeof(one));
	if (!s->failed)
		s->found[s->n++] = one;
	return FOUND;
}

static void search_file(struct search *s, const char *path)
{
	const unsigned char *at;
	size_t n;

	s->path = path;
	s->from = at = ctl_map(path, &n);
	s->failed = !at;
	if (!at)
		return;
	s->end = s->from + n;
	for (; !s->failed && (at = memmem(at, (size_t)(s->end - at), "tkdc", 4)); at++) {
		enum verdict verdict = look(s, PLAIN, at);

		if (verdict != FOUND && look(s, UTF8, at) != FOUND)
			s->damaged += verdict == DAMAGED;
	}
	for (at = s->from; !s->failed && (at = memmem(at, (size_t)(s->end - at), "746b6463", 8));
		at++)
		look(s, HEX, at);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Searches the file @path, or all files below the directory @path. */
static void search(struct search *s, char *path)
{
	FTS *tree = fts_open(
		(char *[]){path, NULL}, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);

	s->failed = !tree && ctl_fail("%s: %s", path, strerror(errno));
	for (FTSENT *e; !s->failed && (e = fts_read(tree));)
		if (e->fts_info == FTS_F)
			search_file(s, e->fts_accpath);
		else if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			s->failed = ctl_fail("%s: %s", e->fts_path, strerror(e->fts_errno));
	if (tree)
		fts_close(tree);
}

static void show_datasets(struct emit *e, const struct cursor *c)
{
	char text[ORDER_PART_BYTES];

	emit_table(e);
	for (uint32_t d = 0; d < c->datasets; d++) {
		const struct cursor_dataset *dataset = &c->dataset[d];
		uint64_t ends_at = 0, unserved = 0;
		bool ends = cursor_unserved(c, d, &ends_at, &unserved);

		emit_text(e, NULL, "dataset", dataset->name);
		emit_number(e, NULL, "windows", c->order[d].windows);
		emit_cell(e, "digest", "%016" PRIx64, dataset->digest);
		emit_optional(e, NULL, "max_epochs", dataset->max_epochs, dataset->max_epochs > 0);
		emit_optional(e, NULL, "ends at", ends_at, ends);
		emit_optional(e, NULL, "never served", unserved, ends);
		emit_text(e, NULL, "part", order_part_text(dataset->lo, dataset->hi, text));
		emit_row(e);
	}
}

static void show_mixes(struct emit *e, const struct cursor *c)
{
	uint32_t now = cursor_past(c);
	char text[MIX_BYTES];

	emit_table(e);
	for (uint32_t i = 0; i < c->segments; i++) {
		emit_text(e, NULL, "mix", i < now ? "past" : i == now ? "current" : "pending");
		emit_number(e, NULL, "from", c->segment[i]->start);
		emit_text(e, NULL, "shares", mix_text(c, c->segment[i], text));
		emit_row(e);
	}
	if (c->segment[0]->start > 0)
		emit_line(e, "mixes before position %" PRIu64 " had no room", c->segment[0]->start);
}

/* @found: where it was found; NULL: in a file of its own. */
static void show(struct emit *e, const struct cursor *c, const struct found *found)
{
	static char json[CURSOR_JSON_BYTES];
	size_t n = e->json ? cursor_json(c, json, sizeof(json)) : 0;

	if (n > 0) {
		json[n - 1] = 0;
		emit_json(e, "", json + 1); /* without its braces */
	}
	if (found) {
		emit_text(e, "file", NULL, found->path);
		emit_number(e, "offset", NULL, found->offset);
		emit_json(e, "compressed", "false");
		emit_number(e, "places", NULL, found->places);
		emit_line(e, "file    %s", found->path);
		emit_line(e, "byte    %" PRIu64, found->offset);
		emit_line(e, "places  %" PRIu64, found->places);
	}
	emit_line(e, "stream  %s", c->stream);
	emit_line(e, "seed    %" PRIu64, c->seed);
	emit_line(e, "window  %" PRIu64 " + %" PRIu64 " tokens, stride %" PRIu64, c->seq_len,
		c->extra, c->stride);
	emit_line(e, "next    %" PRIu64, c->next);
	emit_line(e, "end     %s", c->epochs || c->samples ? digits(cursor_end(c)).text : "-");
	if (c->epochs)
		emit_line(e, "epochs  %" PRIu64, c->epochs);
	emit_line(e, "%s", "");
	show_datasets(e, c);
	emit_line(e, "%s", "");
	show_mixes(e, c);
	emit_row(e);
}

static bool show_checkpoint(struct emit *e, char *path)
{
	static struct search s; /* what it finds is not freed: the process ends */

	search(&s, path);
	if (s.failed)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		if (i > 0)
			emit_line(e, "%s", "");
		show(e, &s.found[i].cursor, &s.found[i]);
	}
	if (s.damaged > 0)
		ctl_note("%s: %" PRIu64 " cursors in it are damaged", path, s.damaged);
	return s.n > 0 || ctl_error("%s: contains no cursor; a checkpoint has one if it stores a "
				    "Loader's state_dict(), and is not compressed",
				  path);
}

static int show_file(const struct ctl_arguments *a)
{
	struct emit e = {.json = ctl_given(a, "json")};
	static struct cursor c;
	char *path = a->argument[0];
	struct stat st;
	size_t n;
	bool good, directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	const void *bytes = directory ? NULL : ctl_map(path, &n);

	/* A checkpoint does not begin like a cursor. */
	if (directory || (bytes && n > 0 && memcmp(bytes, "tkdc", n < 4 ? n : 4) != 0))
		good = show_checkpoint(&e, path);
	else if ((good = bytes && ctl_cursor_read(&c, path, NULL)))
		show(&e, &c, NULL);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

/* ---- new ---- */

static bool write_output(const struct cursor *cursor, const struct ctl_arguments *a)
{
	char bytes[LIMIT_CURSOR_BYTES];
	size_t n = cursor_encode(cursor, bytes, sizeof(bytes));

	assert(n > 0);
	return ctl_file_write(ctl_text(a, "output"), bytes, n);
}

static int new_cursor(const struct ctl_arguments *a)
{
	struct ctl_stream s;

	if (!ctl_stream_open(&s, ctl_text(a, "config"), a->argument[0], false))
		return CTL_FAILED;
	bool done = write_output(&s.stream->begin, a);

	ctl_stream_close(&s);
	return done ? CTL_OK : CTL_FAILED;
}

/* ---- edits ---- */

/* Notes datasets that the user may have forgotten: those with a weight now or in a pending mix. */
static void note_unnamed(const struct cursor *before, const struct ctl_arguments *mix)
{
	for (uint32_t d = 0; d < before->datasets; d++) {
		bool named = false, serves = false;

		for (int i = 1; i < mix->arguments; i++) /* ctl_weights() has cut them */
			named |= strcmp(mix->argument[i], before->dataset[d].name) == 0;
		for (uint32_t i = cursor_past(before); i < before->segments; i++)
			serves |= d < before->segment[i]->datasets &&
				  before->segment[i]->units[d] > 0;
		if (serves && !named)
			ctl_note("dataset %s is not named and gets weight 0",
				before->dataset[d].name);
	}
}

/*
 * Applies the config's schedule and max_epochs to a cursor of this stream. The cursor's datasets
 * may differ from the config's; they are matched by name. A dataset that the config no longer has
 * gets no weight and keeps its limit. A dataset that only the config has must be added to the
 * cursor before it gets weight.
 *
 * The current mix lasts until the first step. If the first step is a ramp that has begun, the ramp
 * starts from the config's weights. Call it after cursor_belongs(). On failure returns false,
 * leaves *cursor unchanged, and fills @fault as config_refuse().
 */
static bool schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault)
{
	const struct config_stream *config = stream->config;
	uint32_t steps = config->steps;
	size_t n = cursor->datasets;
	/* Row 0 has the config's weights, row k those of step k - 1, in the cursor's order. */
	double *weights = calloc((steps + 1) * n, sizeof(*weights));
	struct cursor_step *step = calloc(steps + 1, sizeof(*step));
	uint64_t max_epochs[LIMIT_DATASETS];
	bool begun = steps > 0 && config->step[0].from < config->step[0].to &&
		     config->step[0].from < cursor_mix_at(cursor);
	char field[FAULT_FIELD_BYTES];
	struct fault cause;
	bool done = (weights && step) || fault_memory(&cause);

	for (size_t d = 0; d < n; d++)
		max_epochs[d] = cursor->dataset[d].max_epochs;
	for (uint32_t k = 0; done && k < steps; k++) {
		step[k] = config->step[k];
		step[k].weights = weights + (k + 1) * n;
	}
	for (uint32_t i = 0; done && i < config->datasets; i++) {
		const struct config_dataset *source = &config->dataset[i];
		int d = cursor_find(cursor, source->name);

		if (d >= 0)
			max_epochs[d] = source->max_epochs;
		for (uint32_t k = 0; k <= steps; k++) {
			double weight = k == 0 ? source->weight : config->step[k - 1].weights[i];

			if (d >= 0) {
				weights[k * n + (size_t)d] = weight;
			} else if (weight > 0 && (k > 0 || begun)) {
				snprintf(field, sizeof(field), "dataset %s: weight", source->name);
				done = fault_set(&cause, FAULT_ARGUMENT, field,
					"the schedule gives it weight, but the cursor does not "
					"have it yet; add it first (tokctl cursor add)");
			}
		}
	}
	done = done &&
	       cursor_schedule(cursor, begun ? weights : NULL, step, steps, max_epochs, &cause);
	free(weights);
	free(step);
	return done || stream_refuse(stream, &cause, fault);
}

/* Returns an exit status. */
static int apply(struct cursor *c, const struct ctl_arguments *a, const struct ctl_stream *s)
{
	static const struct {
		enum cursor_edit_kind kind;
		const char *number;
	} edits[VERBS] = {[SEEK] = {CURSOR_SEEK, "to"},
		[SKIP] = {CURSOR_SKIP, "samples"},
		[MIX] = {CURSOR_MIX, "at"},
		[ADD] = {CURSOR_ADD, NULL},
		[REMOVE] = {CURSOR_REMOVE, "at"}};
	enum verb verb = (enum verb)(a->command - verbs);
	const char *number = edits[verb].number;
	double weight[LIMIT_DATASETS];
	struct cursor_edit edit = {.kind = edits[verb].kind,
		.number = number ? ctl_number(a, number, CURSOR_SOON) : CURSOR_SOON,
		.names = (uint32_t)a->arguments - 1,
		.name = (const char *const *)a->argument + 1,
		.weight = weight,
		.stream = s->stream ? &s->stream->begin : NULL};
	struct fault fault;
	uint64_t at;

	if (verb == MIX && ctl_weights(a, 1, weight) != CTL_OK)
		return CTL_USAGE;
	if (verb == SCHEDULE ? !cursor_belongs(c, &s->stream->begin, &fault)
			     : !cursor_apply(c, &edit, &at, &fault))
		return ctl_fail("%s: %s: %s", a->argument[0], fault.field, fault.text);
	if (verb == SCHEDULE && !schedule(s->stream, c, &fault))
		return ctl_fail("%s", fault.text); /* it names the config's line */
	return CTL_OK;
}

/* Writes the edited cursor and prints how it differs. */
static int edit(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	bool config = c == &verbs[ADD] || c == &verbs[SCHEDULE];
	static struct cursor before, after;
	struct ctl_stream s = {0};
	struct emit e = {.json = ctl_given(a, "json")};
	int status = CTL_FAILED;

	if (ctl_cursor_read(&before, a->argument[0], NULL) &&
		(!config || ctl_stream_open(&s, ctl_text(a, "config"), before.stream, false)) &&
		(cursor_copy(&after, &before) || ctl_error(PHRASE_MEMORY)))
		status = apply(&after, a, &s);
	if (status == CTL_OK && !write_output(&after, a))
		status = CTL_FAILED;
	if (status == CTL_OK && c == &verbs[MIX])
		note_unnamed(&before, a);
	if (status == CTL_OK)
		compare_two(&e, &before, &after);
	ctl_stream_close(&s);
	return emit_end(&e, status);
}

/* ---- the tables ---- */

#define OUT(phrase) OPTION_TEXT("output", "OUT", phrase), .letter = 'o', .required = true
#define OUT_OR_IN   OUT("file to write the cursor to; may be the input file")

static const struct ctl_option new_options[] = {
	{OUT("file to write the cursor to")}, {CTL_CONFIG_NEEDED}};
static const struct ctl_option print_options[] = {{CTL_JSON_OPTION}};
static const struct ctl_option seek_options[] = {{OUT_OR_IN},
	{OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX, "position of the next sample to serve"),
		.required = true},
	{CTL_JSON_OPTION}};
static const struct ctl_option skip_options[] = {{OUT_OR_IN},
	{OPTION_NUMBER(
		 "samples", "N", 0, UINT64_MAX, "number of samples to skip; they are never served"),
		.required = true},
	{CTL_JSON_OPTION}};
static const struct ctl_option at_options[] = {{OUT_OR_IN},
	{OPTION_NUMBER("at", "POSITION", 0, UINT64_MAX,
		"first sample of the change, a multiple of 1024; default: the earliest possible")},
	{CTL_JSON_OPTION}};
static const struct ctl_option config_options[] = {
	{OUT_OR_IN}, {CTL_CONFIG_NEEDED}, {CTL_JSON_OPTION}};

#define VERB(table, function) OPTIONS_ARE(table##_options), .run = function

static const struct ctl_command verbs[VERBS] = {
	[NEW] = {VERB(new, new_cursor), .name = "cursor new", .arguments = "STREAM",
		.help = "create the cursor of a stream's beginning"},
	[SHOW] = {VERB(print, show_file), .name = "cursor show", .arguments = "FILE",
		.help = "print a cursor, or those in a checkpoint"},
	[DIFF] = {VERB(print, diff), .name = "cursor diff", .arguments = "LEFT RIGHT...",
		.help = "print how cursors differ, and which is the odd one of several"},
	[SEEK] = {VERB(seek, edit), .name = "cursor seek", .arguments = "FILE",
		.help = "move a cursor to another position of the same order"},
	[SKIP] = {VERB(skip, edit), .name = "cursor skip", .arguments = "FILE",
		.help = "skip the next samples: they are never served"},
	[MIX] = {VERB(at, edit), .name = "cursor mix", .arguments = "FILE DATASET=WEIGHT...",
		.help = "change the weights of the datasets"},
	[ADD] = {VERB(config, edit), .name = "cursor add", .arguments = "FILE",
		.help = "add the config's new datasets to a cursor, without weight"},
	[REMOVE] = {VERB(at, edit), .name = "cursor remove", .arguments = "FILE DATASET",
		.help = "stop serving a dataset"},
	[SCHEDULE] = {VERB(config, edit), .name = "cursor schedule", .arguments = "FILE",
		.help = "replace the pending mixes with the config's `schedule:`"},
};

const struct ctl_command ctl_cursor = {
	.name = "cursor",
	.help = "create, print, compare and edit cursor files",
	.subcommands = (const struct ctl_command *const[]){&verbs[NEW], &verbs[SHOW], &verbs[DIFF],
		&verbs[SEEK], &verbs[SKIP], &verbs[MIX], &verbs[ADD], &verbs[REMOVE],
		&verbs[SCHEDULE], NULL},
};
