/* The differences of two cursors. */
#include "client/ctl/offline/cursor_compare.h"

#include "client/ctl/common/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

struct diff {
	struct ctl_out *out;
	bool json, differs;
};

static void begin_json(struct diff *d, const char *field)
{
	ctl_put(d->out, "{\"field\":");
	ctl_put_string(d->out, field);
	ctl_put(d->out, ",");
}

static void differ_text(struct diff *d, const char *field, const char *left, const char *right)
{
	d->differs = true;
	if (d->json) {
		begin_json(d, field);
		ctl_put(d->out, "\"left\":");
		ctl_put_string(d->out, left);
		ctl_put(d->out, ",\"right\":");
		ctl_put_string(d->out, right);
		ctl_put(d->out, "}\n");
		return;
	}
	ctl_put_left(d->out, field, 0);
	ctl_put(d->out, ": ");
	ctl_put_left(d->out, left, 0);
	ctl_put(d->out, " | ");
	ctl_put_left(d->out, right, 0);
	ctl_put(d->out, "\n");
}

static void diff_number(struct diff *d, const char *field, uint64_t left, uint64_t right)
{
	if (left == right)
		return;
	d->differs = true;
	if (d->json) {
		begin_json(d, field);
		ctl_put_pair(d->out, "left", left);
		ctl_put(d->out, ",");
		ctl_put_pair(d->out, "right", right);
		ctl_put(d->out, "}\n");
		return;
	}
	ctl_put_left(d->out, field, 0);
	ctl_put(d->out, ": ");
	ctl_put_number(d->out, left);
	ctl_put(d->out, " | ");
	ctl_put_number(d->out, right);
	ctl_put(d->out, "\n");
}

/* A dataset that only one of the two has. */
static void diff_absent(struct diff *d, const struct cursor *a, const struct cursor *b, uint32_t i)
{
	const struct cursor *has = i < a->datasets ? a : b;
	char field[128], text[64];

	snprintf(field, sizeof(field), "dataset %s", has->dataset[i].name);
	snprintf(text, sizeof(text), "%" PRIu64 " windows", has->order[i].windows);
	differ_text(d, field, has == a ? text : "absent", has == a ? "absent" : text);
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
		{"max_epochs", a->dataset[i].max_epochs, b->dataset[i].max_epochs},
	};
	char field[128];

	if (strcmp(a->dataset[i].name, b->dataset[i].name) != 0) {
		snprintf(field, sizeof(field), "dataset %" PRIu32, i);
		differ_text(d, field, a->dataset[i].name, b->dataset[i].name);
		return;
	}
	for (size_t k = 0; k < COUNT(numbers); k++) {
		snprintf(field, sizeof(field), "dataset %s: %s", a->dataset[i].name,
			numbers[k].what);
		diff_number(d, field, numbers[k].left, numbers[k].right);
	}
	char left[ORDER_PART_BYTES], right[ORDER_PART_BYTES];

	snprintf(field, sizeof(field), "dataset %s: part", a->dataset[i].name);
	if (a->dataset[i].lo != b->dataset[i].lo || a->dataset[i].hi != b->dataset[i].hi)
		differ_text(d, field, order_part_text(a->dataset[i].lo, a->dataset[i].hi, left),
			order_part_text(b->dataset[i].lo, b->dataset[i].hi, right));
	snprintf(field, sizeof(field), "dataset %s: shuffle", a->dataset[i].name);
	if (x->shuffle != y->shuffle)
		differ_text(d, field, order_shuffles[x->shuffle], order_shuffles[y->shuffle]);
}

/* ---- diff of the mixes ---- */

/* All shares of a segment in one line. The caller frees it. NULL: out of memory. */
static char *shares_of(const struct cursor *c, const struct order_segment *s)
{
	char *text = NULL;
	size_t bytes;
	FILE *to = open_memstream(&text, &bytes);
	const char *comma = "";

	if (!to)
		return NULL;
	for (uint32_t d = 0; d < s->datasets; d++) {
		if (s->units[d] == 0)
			continue;
		fprintf(to, "%s%s %s", comma, c->dataset[d].name, ctl_share(s, d).text);
		comma = ", ";
	}
	if (fclose(to) == 0)
		return text;
	free(text);
	return NULL;
}

/* A mix that only one of the two has. */
static void diff_one_sided(
	struct diff *d, const struct cursor *c, const struct order_segment *s, bool left)
{
	char field[64], *shares = shares_of(c, s);
	const char *text = shares ? shares : "present";

	snprintf(field, sizeof(field), "mix from %" PRIu64, s->start);
	differ_text(d, field, left ? text : "absent", left ? "absent" : text);
	free(shares);
}

/* A dataset's share, if the two differ. For people it is in percent, unless both percentages look
 * the same. */
static void diff_share(struct diff *d, const struct cursor *names, uint32_t i,
	const struct order_segment *a, const struct order_segment *b)
{
	struct share left = ctl_share(a, i), right = ctl_share(b, i);
	bool percent = !d->json && strcmp(left.text, right.text) != 0;
	char field[160];

	if (ctl_units(a, i) == ctl_units(b, i))
		return;
	snprintf(field, sizeof(field), "mix from %" PRIu64 ": %s%s", a->start,
		names->dataset[i].name, percent ? "" : ": units");
	if (percent)
		differ_text(d, field, left.text, right.text);
	else
		diff_number(d, field, ctl_units(a, i), ctl_units(b, i));
}

/* The state that a mix inherits: how many datasets it knew, how often each was served before, and
 * the roundings. */
static void diff_past(struct diff *d, const struct cursor *names, const struct order_segment *a,
	const struct order_segment *b)
{
	char field[160];

	snprintf(field, sizeof(field), "mix from %" PRIu64 ": datasets", a->start);
	diff_number(d, field, a->datasets, b->datasets);
	for (uint32_t i = 0; i < a->datasets || i < b->datasets; i++) {
		snprintf(field, sizeof(field), "mix from %" PRIu64 ": %s: served before", a->start,
			names->dataset[i].name);
		diff_number(d, field, i < a->datasets ? a->base[i] : 0,
			i < b->datasets ? b->base[i] : 0);
	}
	for (uint32_t i = 0; i < a->padded || i < b->padded; i++) {
		snprintf(field, sizeof(field), "mix from %" PRIu64 ": rounding[%" PRIu32 "]",
			a->start, i);
		diff_number(
			d, field, i < a->padded ? a->phase[i] : 0, i < b->padded ? b->phase[i] : 0);
	}
}

/* Compares two mixes that begin at the same position; with @past also the state that they
 * inherited. True if they differ. */
static bool diff_pair(struct diff *d, const struct cursor *names, const struct order_segment *a,
	const struct order_segment *b, bool past)
{
	bool before = d->differs, differ;

	d->differs = false;
	for (uint32_t i = 0; i < names->datasets; i++)
		diff_share(d, names, i, a, b);
	if (past)
		diff_past(d, names, a, b);
	differ = d->differs;
	d->differs |= before;
	return differ;
}

static void diff_mixes(struct diff *d, const struct cursor *a, const struct cursor *b)
{
	const struct cursor *names = a->datasets > b->datasets ? a : b;
	/* A difference was reported: the counts of all later mixes differ because of it. */
	bool reported = false;

	for (uint32_t i = 0, j = 0; i < a->segments || j < b->segments;) {
		bool left = i < a->segments, right = j < b->segments;

		if (left && right && a->segment[i]->start == b->segment[j]->start) {
			reported |=
				diff_pair(d, names, a->segment[i++], b->segment[j++], !reported);
		} else if (left && (!right || a->segment[i]->start < b->segment[j]->start)) {
			/* The other cursor may also have had this mix, before its first one. */
			reported |= a->segment[i]->start > b->segment[0]->start;
			diff_one_sided(d, a, a->segment[i++], true);
		} else {
			reported |= b->segment[j]->start > a->segment[0]->start;
			diff_one_sided(d, b, b->segment[j++], false);
		}
	}
}

bool ctl_cursor_compare(
	struct ctl_out *out, const struct cursor *a, const struct cursor *b, bool json)
{
	struct diff d = {.out = out, .json = json};
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
	};

	if (strcmp(a->stream, b->stream) != 0)
		differ_text(&d, "stream", a->stream, b->stream);
	for (size_t i = 0; i < COUNT(numbers); i++)
		diff_number(&d, numbers[i].field, numbers[i].left, numbers[i].right);
	for (uint32_t i = 0; i < a->datasets || i < b->datasets; i++)
		(i < a->datasets && i < b->datasets ? diff_dataset : diff_absent)(&d, a, b, i);
	diff_mixes(&d, a, b);
	return !d.differs;
}
