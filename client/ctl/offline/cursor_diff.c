/*
 * tokctl cursor diff: how two cursors differ. Of more, e.g. of the snapshots of a job's nodes:
 * which are the odd ones. The edits of `tokctl cursor` print the same lines.
 */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Prints a difference, unless the values are equal. @text: they are not numbers. */
__attribute__((format(printf, 5, 6))) static void compare(
	struct diff *d, bool text, const char *left, const char *right, const char *format, ...)
{
	char field[2 * LIMIT_NAME_BYTES];
	va_list args;

	if (strcmp(left, right) == 0)
		return;
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
}

#define texts(d, left, right, ...) compare(d, true, left, right, __VA_ARGS__)
#define numbers(d, left, right, ...)                                                               \
	compare(d, false, digits(left).text, digits(right).text, __VA_ARGS__)

/* ---- two cursors ---- */

static void compare_dataset(
	struct diff *d, const struct cursor *a, const struct cursor *b, uint32_t i)
{
	const struct cursor_dataset *left = &a->dataset[i], *right = &b->dataset[i];
	const struct order_dataset *x = &a->order[i], *y = &b->order[i];
	char parts[2][ORDER_PART_BYTES];

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

/* Datasets that only one of the two has. */
static void compare_absent(struct diff *d, const struct cursor *more, uint32_t from, bool left)
{
	char text[64];

	for (uint32_t i = from; i < more->datasets; i++) {
		snprintf(text, sizeof(text), "%" PRIu64 " windows", more->order[i].windows);
		texts(d, left ? text : "absent", left ? "absent" : text, "dataset %s",
			more->dataset[i].name);
	}
}

char *ctl_mix_text(const struct cursor *c, const struct order_segment *s, char text[CTL_MIX_BYTES])
{
	size_t n = 0;

	for (uint32_t d = 0; d < s->datasets; d++)
		if (s->units[d] > 0)
			n += (size_t)snprintf(text + n, CTL_MIX_BYTES - n, "%s%s %s", n ? ", " : "",
				c->dataset[d].name, ctl_share(s, d).text);
	assert(n > 0 && n < CTL_MIX_BYTES);
	return text;
}

/* The state that two mixes from the same position on inherited: how often each dataset was served
 * before, and the roundings. */
static void compare_inherited(struct diff *d, const struct cursor *names,
	const struct order_segment *a, const struct order_segment *b)
{
	numbers(d, a->datasets, b->datasets, "mix from %" PRIu64 ": datasets", a->start);
	for (uint32_t i = 0; i < a->datasets && i < b->datasets; i++) {
		numbers(d, a->units[i], b->units[i], "mix from %" PRIu64 ": %s: units", a->start,
			names->dataset[i].name);
		numbers(d, a->base[i], b->base[i], "mix from %" PRIu64 ": %s: served before",
			a->start, names->dataset[i].name);
	}
	for (uint32_t i = 0; i < a->padded && i < b->padded; i++)
		numbers(d, a->phase[i], b->phase[i], "mix from %" PRIu64 ": rounding[%" PRIu32 "]",
			a->start, i);
}

static void compare_mixes(struct diff *d, const struct cursor *a, const struct cursor *b)
{
	const struct cursor *names = a->datasets < b->datasets ? a : b;
	/* A difference was reported: the counts of all later mixes differ because of it. */
	bool reported = false;
	char left[CTL_MIX_BYTES], right[CTL_MIX_BYTES];

	for (uint32_t i = 0, j = 0; i < a->segments || j < b->segments;) {
		const struct order_segment *x = i < a->segments ? a->segment[i] : NULL,
					   *y = j < b->segments ? b->segment[j] : NULL;
		struct diff one = {.e = d->e};

		if (x && y && x->start != y->start)
			*(x->start < y->start ? &y : &x) = NULL;
		texts(&one, x ? ctl_mix_text(a, x, left) : "absent",
			y ? ctl_mix_text(b, y, right) : "absent", "mix from %" PRIu64,
			(x ? x : y)->start);
		if (x && y && !one.differs && !reported)
			compare_inherited(&one, names, x, y);
		d->differs |= one.differs;
		/* A cursor may have had a mix of the other one's, before its first one. */
		reported |= one.differs && (x || y->start > a->segment[0]->start) &&
			    (y || x->start > b->segment[0]->start);
		i += x != NULL;
		j += y != NULL;
	}
}

bool ctl_cursor_compare(struct emit *e, const struct cursor *a, const struct cursor *b)
{
	struct diff d = {.e = e};
	uint32_t both = a->datasets < b->datasets ? a->datasets : b->datasets;

	texts(&d, a->stream, b->stream, "stream");
	numbers(&d, a->seed, b->seed, "seed");
	numbers(&d, a->seq_len, b->seq_len, "seq_len");
	numbers(&d, a->extra, b->extra, "extra");
	numbers(&d, a->stride, b->stride, "stride");
	numbers(&d, a->epochs, b->epochs, "epochs");
	numbers(&d, a->samples, b->samples, "samples");
	numbers(&d, a->next, b->next, "next");
	for (uint32_t i = 0; i < both; i++)
		compare_dataset(&d, a, b, i);
	compare_absent(&d, a, both, true);
	compare_absent(&d, b, both, false);
	compare_mixes(&d, a, b);
	return !d.differs;
}

/* ---- several ---- */

enum { JSON };

static const struct ctl_option options[] = {[JSON] = {CTL_JSON_OPTION}};

/* How many of @n fingerprints are the same as number @i. */
static uint64_t alike(const uint64_t *print, int n, int i)
{
	uint64_t count = 0;

	for (int j = 0; j < n; j++)
		count += print[j] == print[i];
	return count;
}

/* Compares @n ≥ 3 cursors with one of those that are equal to more than half of all, otherwise with
 * the first. True if all are equal. */
static bool compare_all(struct emit *e, const struct cursor *c, char *const *path, int n)
{
	uint64_t *print = calloc((size_t)n, sizeof(*print)), count;
	int usual = 0;
	bool same = print || ctl_error(PHRASE_MEMORY);

	for (int i = 0; print && i < n; i++)
		print[i] = cursor_fingerprint(&c[i], 1, 1);
	for (int i = 0; print && i < n; i++)
		if (2 * alike(print, n, i) > (uint64_t)n)
			usual = i;
	for (int i = 0; print && i < n; i++) {
		if (print[i] == print[usual])
			continue;
		count = alike(print, n, usual);
		emit_line(e, "%s differs from %s", path[i], path[usual]);
		if (count > 1)
			emit_more(e, " and %" PRIu64 " other%s", count - 1, count == 2 ? "" : "s");
		emit_more(e, ":");
		emit_text(e, "odd", NULL, path[i]);
		emit_text(e, "usual", NULL, path[usual]);
		emit_number(e, "alike", NULL, count);
		emit_row(e);
		ctl_cursor_compare(e, &c[usual], &c[i]);
		same = false;
	}
	free(print);
	return same;
}

static int diff(const struct ctl_arguments *a)
{
	struct cursor *c = calloc((size_t)a->arguments, sizeof(*c));
	struct emit e = {.json = ctl_given(a, JSON)};
	bool good = c || ctl_error(PHRASE_MEMORY);

	for (int i = 0; good && i < a->arguments; i++)
		good = ctl_cursor_read(&c[i], a->argument[i], NULL);
	if (good)
		good = a->arguments == 2 ? ctl_cursor_compare(&e, &c[0], &c[1])
					 : compare_all(&e, c, a->argument, a->arguments);
	for (int i = 0; c && i < a->arguments; i++)
		cursor_free(&c[i]);
	free(c);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

const struct ctl_command ctl_cursor_diff = {
	.name = "cursor diff",
	.arguments = "LEFT RIGHT...",
	.help = "print how cursors differ, and which is the odd one of several",
	OPTIONS_ARE(options),
	.run = diff,
};
