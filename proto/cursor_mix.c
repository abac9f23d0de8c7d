/*
 * The mix of a cursor: from weights to the segments that are in force now and later.
 *
 * All edits of the mix end in cursor_lay_out(), the one place where max_epochs become segments. A
 * dataset reaches its limit in the block of 1024 that would exceed it. A segment alone determines
 * that block, by the first ordinal past the limit. So a schedule gives the same segments at the
 * beginning and in the middle of a run.
 */
#include "proto/cursor.h"

#include "proto/cursor_private.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

bool cursor_units(
	const struct cursor *c, const double *weights, uint64_t *units, struct fault *fault)
{
	struct fault wrong;

	if (!order_units(weights, c->datasets, units, &wrong))
		return wrong.index == FAULT_NO_INDEX
			       ? fault_set(fault, FAULT_CURSOR, wrong.field, "%s", wrong.text)
			       : cursor_refuse_dataset(fault, c->dataset[wrong.index].name,
					 wrong.field, "%s", wrong.text);
	for (uint32_t d = 0; d < c->datasets; d++)
		if (units[d] > 0 && c->order[d].windows == 0)
			return cursor_refuse_dataset(fault, c->dataset[d].name, "weight",
				"must be 0, because it has no window: all its shards are shorter "
				"than seq_len + extra");
	return true;
}

static uint64_t units_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->units[d] : 0;
}

static uint64_t base_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->base[d] : 0;
}

/* Units as weights. Exact, because units have 33 bits. */
static void weights_of(const struct cursor *c, const struct order_segment *s, double *weights)
{
	assert(s->datasets <= c->datasets);
	for (uint32_t d = 0; d < c->datasets; d++)
		weights[d] = (double)units_of(s, d);
}

/* ---- limits ---- */

/* How many samples dataset @d may serve in all; UINT64_MAX: any number. */
static uint64_t limit_of(const struct cursor *c, uint32_t d)
{
	assert(d < c->datasets);
	u128 limit = (u128)c->order[d].windows * c->dataset[d].max_epochs;

	return c->dataset[d].max_epochs == 0 || limit > UINT64_MAX ? UINT64_MAX : (uint64_t)limit;
}

/* Start of the first block in which @s would take @d beyond its limit; UINT64_MAX: none does. */
static uint64_t block_beyond(const struct cursor *c, const struct order_segment *s, uint32_t d)
{
	uint64_t limit = limit_of(c, d), j;

	if (limit == UINT64_MAX || units_of(s, d) == 0)
		return UINT64_MAX;
	/* A limit that was set later may be exceeded already: then the next sample exceeds it. */
	if (limit < s->base[d])
		limit = s->base[d];
	if (!order_join(s, d, limit, &j) || j > UINT64_MAX - s->start)
		return UINT64_MAX;
	return s->start + j / LIMIT_BLOCK * LIMIT_BLOCK;
}

/* Sets the weight of all datasets that reach their limit in @s by the block at @at to 0. Returns
 * the first of them, or -1. */
static int take_weight(
	const struct cursor *c, const struct order_segment *s, uint64_t at, double *weights)
{
	int first = -1;

	for (uint32_t d = 0; d < c->datasets; d++)
		if (block_beyond(c, s, d) <= at) {
			weights[d] = 0;
			if (first < 0)
				first = (int)d;
		}
	return first;
}

static uint64_t earliest_beyond(const struct cursor *c, const struct order_segment *s)
{
	uint64_t earliest = UINT64_MAX;

	for (uint32_t d = 0; d < c->datasets; d++) {
		uint64_t at = block_beyond(c, s, d);

		if (at < earliest)
			earliest = at;
	}
	return earliest;
}

static bool any(const double *weights, uint32_t n)
{
	for (uint32_t d = 0; d < n; d++)
		if (weights[d] > 0)
			return true;
	return false;
}

/* ---- laying out ---- */

struct layout {
	struct cursor *cursor;		  /* a copy: the segments that stay, then new ones */
	const struct order_segment *last; /* of these, or NULL */
	uint64_t floor;			  /* no segment starts before it */
	size_t bytes;
};

static bool append(struct layout *l, struct order_segment *s, struct fault *fault)
{
	assert(!l->last || (s->start > l->last->start && s->start >= l->floor));
	if (l->last)
		l->bytes += cursor_bytes_more(s);
	if (l->bytes > LIMIT_CURSOR_BYTES) {
		order_segment_free(s);
		return fault_set(fault, FAULT_CURSOR, "schedule",
			"a cursor of %d bytes has no room for %u or more pending mixes of %u "
			"datasets; use fewer steps, or max_epochs for fewer datasets",
			LIMIT_CURSOR_BYTES, l->cursor->segments - cursor_past(l->cursor),
			l->cursor->datasets);
	}
	if (!cursor_append(l->cursor, s))
		return fault_memory(fault);
	l->last = s;
	return true;
}

static bool same_units(const struct order_segment *a, const struct order_segment *b)
{
	for (uint32_t d = 0; d < a->datasets || d < b->datasets; d++)
		if (units_of(a, d) != units_of(b, d))
			return false;
	return true;
}

static bool refuse_served(
	const struct layout *l, const struct order_segment *s, uint32_t d, struct fault *fault)
{
	const struct cursor *c = l->cursor;
	uint64_t limit = limit_of(c, d), served = base_of(s, d);

	assert(c->dataset[d].max_epochs > 0);
	return cursor_refuse_dataset(fault, c->dataset[d].name, "weight",
		"must be 0, because its max_epochs (%" PRIu64 ") are served by position %" PRIu64
		" (%" PRIu64 " windows are left, too few for a block of %d)",
		c->dataset[d].max_epochs, s->start, served < limit ? limit - served : 0,
		LIMIT_BLOCK);
}

/*
 * Appends a mix from @at on, without the datasets that reach their limit in its first block. A mix
 * that changes nothing becomes a segment only if an operator @asked for it.
 */
static bool place(struct layout *l, uint64_t at, double *weights, bool asked, struct fault *fault)
{
	const struct cursor *c = l->cursor;
	uint64_t units[LIMIT_DATASETS];

	assert(at % LIMIT_BLOCK == 0);
	for (;;) {
		if (!any(weights, c->datasets))
			return fault_set(fault, FAULT_CURSOR, "max_epochs",
				"no dataset is left from position %" PRIu64
				" on; remove max_epochs of a dataset with a weight, or use epochs: "
				"for a stream that ends",
				at);
		if (!cursor_units(c, weights, units, fault))
			return false;

		struct order_segment *s =
			l->last ? order_segment_next(l->last, at, units, c->datasets)
				: order_segment_first(units, c->datasets);

		if (!s)
			return fault_memory(fault);

		int beyond = take_weight(c, s, at, weights);

		if (beyond < 0 && (asked || !l->last || !same_units(s, l->last)))
			return append(l, s, fault);
		if (beyond >= 0 && asked)
			refuse_served(l, s, (uint32_t)beyond, fault);
		order_segment_free(s);
		if (beyond < 0)
			return true;
		if (asked)
			return false;
	}
}

/* Appends the mixes that follow from the limits while @weights are in force, until @until. */
static bool follow(struct layout *l, double *weights, uint64_t until, struct fault *fault)
{
	assert(l->last);
	for (;;) {
		uint64_t at = earliest_beyond(l->cursor, l->last);

		if (at < l->floor)
			at = l->floor;
		if (at >= until || at == UINT64_MAX)
			return true;
		take_weight(l->cursor, l->last, at, weights);
		if (!place(l, at, weights, false, fault))
			return false;
	}
}

static bool lay_points(struct layout *l, const struct cursor_point *points, uint32_t n, bool asked,
	struct fault *fault)
{
	const struct cursor *c = l->cursor;
	double weights[LIMIT_DATASETS];
	uint64_t end = cursor_end(c);

	assert(l->last || (n > 0 && points[0].at == 0));
	if (l->last) {
		weights_of(c, l->last, weights);
		if (!follow(l, weights, n > 0 && points[0].at < end ? points[0].at : end, fault))
			return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		assert(i == 0 || points[i].at >= points[i - 1].at);
		memcpy(weights, points[i].weights, c->datasets * sizeof(*weights));
		if (!place(l, points[i].at, weights, asked && i + 1 == n, fault) ||
			!follow(l, weights,
				i + 1 < n && points[i + 1].at < end ? points[i + 1].at : end,
				fault))
			return false;
	}
	return true;
}

bool cursor_lay_out(struct cursor *c, const struct cursor_point *points, uint32_t n, bool asked,
	struct fault *fault)
{
	struct cursor laid;
	struct layout l = {.cursor = &laid, .bytes = cursor_bytes_one(c)};

	assert(!c->epochs);
	if (!cursor_copy(&laid, c))
		return fault_memory(fault);
	if (laid.segments > 0) {
		uint32_t past = cursor_past(&laid);
		uint64_t least = cursor_mix_at(&laid);

		while (laid.segments > past + 1)
			order_segment_free(laid.segment[--laid.segments]);
		l.floor = least ? least : UINT64_MAX;
		l.last = laid.segment[past];
	}
	if (!lay_points(&l, points, n, asked, fault))
		return cursor_replace(c, &laid, false);
	cursor_fit(&laid);
	return cursor_replace(c, &laid, true);
}

/* ---- edits ---- */

/* The least position from @at on where a segment may start; 0 if there is none below 2^64. */
static uint64_t mix_at_or_after(const struct cursor *c, uint64_t at)
{
	uint64_t least = cursor_now(c)->start + 1;

	assert(least > 0);
	if (at < least)
		at = least;
	if (at > UINT64_MAX - (LIMIT_BLOCK - 1))
		return 0;
	return (at + LIMIT_BLOCK - 1) / LIMIT_BLOCK * LIMIT_BLOCK;
}

uint64_t cursor_mix_at(const struct cursor *cursor)
{
	return mix_at_or_after(cursor, cursor->next);
}

/* May a mix act from @at on? */
static bool check_mix(const struct cursor *c, uint64_t at, const char *edit, struct fault *fault)
{
	uint64_t least = cursor_mix_at(c);

	if (c->epochs)
		return fault_set(fault, FAULT_CURSOR, edit, PHRASE_EPOCHS, c->stream);
	if (least == 0)
		return fault_set(
			fault, FAULT_CURSOR, "position", PHRASE_NO_BLOCK, c->next, LIMIT_BLOCK);
	if (at % LIMIT_BLOCK != 0) {
		uint64_t fit = mix_at_or_after(c, at > c->next ? at : c->next);

		return fault_set(fault, FAULT_CURSOR, "position", PHRASE_MULTIPLE, at, LIMIT_BLOCK,
			fit ? fit : at / LIMIT_BLOCK * LIMIT_BLOCK);
	}
	if (at < least)
		return fault_set(fault, FAULT_CURSOR, "position",
			"%" PRIu64 " is too early: the run is at %" PRIu64
			" and its mix began at %" PRIu64 "; use %" PRIu64,
			at, c->next, cursor_now(c)->start, least);
	return true;
}

bool cursor_mix(struct cursor *c, uint64_t at, const double *weights, struct fault *fault)
{
	double given[LIMIT_DATASETS];
	uint64_t units[LIMIT_DATASETS];

	if (!check_mix(c, at, "mix", fault) || !cursor_units(c, weights, units, fault))
		return false;
	memcpy(given, weights, c->datasets * sizeof(*given));
	return cursor_lay_out(c, &(struct cursor_point){at, given}, 1, true, fault);
}

/* The points of the pending mixes, without dataset @d from @at on. */
static uint32_t points_without(const struct cursor *c, uint32_t d, uint64_t at,
	struct cursor_point *points, double *weights, bool *served)
{
	const struct order_segment *before = cursor_now(c);
	uint32_t n = 0;

	assert(at > before->start);
	*served = false;
	for (uint32_t i = cursor_past(c) + 1; i <= c->segments; i++) {
		const struct order_segment *s = i < c->segments ? c->segment[i] : NULL;

		/* The mix that is in force at @at gets a new point there. */
		if (before->start < at && (!s || s->start > at)) {
			points[n] = (struct cursor_point){at, weights + (size_t)n * c->datasets};
			weights_of(c, before, points[n++].weights);
			*served |= units_of(before, d) > 0;
		}
		if (s) {
			points[n] =
				(struct cursor_point){s->start, weights + (size_t)n * c->datasets};
			weights_of(c, s, points[n++].weights);
			*served |= s->start >= at && units_of(s, d) > 0;
			before = s;
		}
	}
	assert(n > 0 && n <= c->segments);
	for (uint32_t i = 0; i < n; i++)
		if (points[i].at >= at)
			points[i].weights[d] = 0;
	return n;
}

bool cursor_remove(struct cursor *c, uint32_t d, uint64_t at, struct fault *fault)
{
	assert(d < c->datasets);
	if (!check_mix(c, at, "remove", fault))
		return false;

	struct cursor_point *points = malloc((c->segments + 1) * sizeof(*points));
	double *weights = malloc((size_t)(c->segments + 1) * c->datasets * sizeof(*weights));
	bool served, ok = false;

	if (!points || !weights) {
		fault_memory(fault);
		goto out;
	}
	uint32_t n = points_without(c, d, at, points, weights, &served);

	if (!served) {
		cursor_refuse_dataset(fault, c->dataset[d].name, "weight",
			"is 0 already from position %" PRIu64 " on", at);
		goto out;
	}
	for (uint32_t i = 0; i < n; i++)
		if (!any(points[i].weights, c->datasets)) {
			cursor_refuse_dataset(fault, c->dataset[d].name, "weight",
				"no other dataset has a weight from position %" PRIu64
				" on; give one a weight first (mix)",
				points[i].at);
			goto out;
		}
	ok = cursor_lay_out(c, points, n, false, fault);
out:
	free(points);
	free(weights);
	return ok;
}

bool cursor_unserved(const struct cursor *c, uint32_t d, uint64_t *position, uint64_t *unserved)
{
	assert(d < c->datasets && c->segments > 0);
	uint32_t i = c->segments;
	u128 limit = (u128)c->order[d].windows * c->dataset[d].max_epochs;

	if (c->dataset[d].max_epochs == 0)
		return false;
	while (i > 0 && units_of(c->segment[i - 1], d) == 0)
		i--;
	if (i == c->segments || c->segment[i]->start >= cursor_end(c))
		return false;

	uint64_t served = base_of(c->segment[i], d);
	u128 left = served < limit ? limit - served : 0;

	*position = c->segment[i]->start;
	*unserved = left > UINT64_MAX ? UINT64_MAX : (uint64_t)left;
	return true;
}
