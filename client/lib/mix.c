#include "client/lib/mix.h"

#include "client/lib/position.h"
#include "client/lib/seek.h"
#include "client/lib/undo.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends dataset @name from @begin, the stream's cursor at position 0. */
static int add_dataset(
	struct tokend *t, struct cursor *edited, const struct cursor *begin, const char *name)
{
	struct cursor_source source;
	struct fault fault;
	char list[NEAREST_LIST_BYTES];
	int d = cursor_find(begin, name);

	if (d < 0)
		return handle_fail(t, TOKEND_EARGUMENT, "mix",
			"stream %s has no dataset %s; add it to the daemon's config, or name one "
			"of: %s",
			t->stream, name, cursor_list_datasets(begin, name, list));
	cursor_source(begin, (uint32_t)d, &source);
	return cursor_add(edited, &source, &fault) ? 0 : handle_fault(t, &fault);
}

/* Appends the datasets of @names that the cursor lacks, sorted: the result must not depend on the
 * order of @names. */
static int add_missing(
	struct tokend *t, struct cursor *edited, const char *const *names, uint32_t n)
{
	const char **missing = malloc((n + 1) * sizeof(*missing));
	struct cursor begin = {0};
	struct fault fault;
	uint32_t count = 0;
	int64_t r = 0;

	if (!missing)
		return handle_memory(t);
	for (uint32_t i = 0; i < n; i++)
		if (cursor_find(edited, names[i]) < 0)
			missing[count++] = names[i];
	if (count > 0) {
		qsort(missing, count, sizeof(*missing), compare_names);
		r = tokend_stream(t, t->saved, LIMIT_CURSOR_BYTES);
		if (r > 0)
			r = cursor_decode(&begin, t->saved, (size_t)r, &fault)
				    ? 0
				    : handle_fault(t, &fault);
	}
	for (uint32_t i = 0; r == 0 && i < count; i++)
		if (i == 0 || strcmp(missing[i], missing[i - 1]) != 0)
			r = add_dataset(t, edited, &begin, missing[i]);
	cursor_free(&begin);
	free(missing);
	return (int)r;
}

/* Sorts @weights in the order of the cursor, which contains all of @names. */
static int order_weights(struct tokend *t, const struct cursor *cursor, const char *const *names,
	const double *weights, uint32_t n, double *ordered)
{
	for (uint32_t d = 0; d < cursor->datasets; d++)
		ordered[d] = -1;
	for (uint32_t i = 0; i < n; i++) {
		int d = cursor_find(cursor, names[i]);

		if (!isfinite(weights[i]) || weights[i] < 0)
			return handle_fail(t, TOKEND_EARGUMENT, "mix",
				"weight of dataset %s: %g is not " PHRASE_WEIGHT, names[i],
				weights[i]);
		if (ordered[d] >= 0)
			return handle_fail(
				t, TOKEND_EARGUMENT, "mix", "dataset %s is named twice", names[i]);
		ordered[d] = weights[i];
	}
	for (uint32_t d = 0; d < cursor->datasets; d++)
		if (ordered[d] < 0)
			ordered[d] = 0;
	return 0;
}

/*
 * Copies the segments of @mixed to @edited. @mixed is @edited at a later position with a new mix;
 * segments of @edited that begin earlier stay.
 */
static bool join(struct cursor *edited, struct cursor *mixed)
{
	uint32_t before = 0, all;

	while (before < edited->segments &&
		edited->segment[before]->start < mixed->segment[0]->start)
		before++;
	all = before + mixed->segments;

	struct order_segment **list = malloc(all * sizeof(struct order_segment *));

	if (!list)
		return false;
	for (uint32_t i = 0; i < before; i++)
		list[i] = edited->segment[i];
	for (uint32_t i = before; i < edited->segments; i++)
		order_segment_free(edited->segment[i]);
	free(edited->segment);
	edited->segment = list;
	edited->segments = before;
	for (uint32_t i = 0; i < mixed->segments; i++) {
		list[before + i] = order_segment_copy(mixed->segment[i]);
		if (!list[before + i])
			return false;
		edited->segments++;
	}
	return true;
}

/*
 * Makes @edited cover all positions from the committed one on, so that it can be the new origin. If
 * a cursor cannot hold that and the trainer never committed, it covers the positions from the taken
 * one on, as no earlier one will be requested.
 */
static int cover(struct tokend *t, struct cursor *edited, struct cursor *mixed, uint64_t *covered)
{
	struct fault fault;
	static const char covers[] = "origin covers the positions taken and committed";

	if (t->committing && !cursor_seek(edited, t->committed, &fault))
		return handle_broken(t, covers);
	*covered = t->committed;
	if (!join(edited, mixed))
		return handle_memory(t);
	if (cursor_encode(edited, t->saved, LIMIT_CURSOR_BYTES) > 0)
		return 0;
	if (t->committing)
		return handle_fail(t, TOKEND_EAGAIN, "mix",
			"more mixes began since the committed position %" PRIu64
			" than a cursor holds; commit first",
			t->committed);
	if (!cursor_seek(edited, t->taken, &fault))
		return handle_broken(t, covers);
	*covered = t->taken;
	return 0;
}

/* Changes the mix of @mixed, the cursor at the position taken, from *@at on. */
static int edit_mix(struct tokend *t, struct cursor *mixed, const char *const *names,
	const double *weights, uint32_t n, uint64_t *at)
{
	double *ordered = malloc(mixed->datasets * sizeof(*ordered));
	struct fault fault;
	int r = ordered ? order_weights(t, mixed, names, weights, n, ordered) : handle_memory(t);

	if (*at == TOKEND_SOON)
		*at = cursor_mix_at(mixed);
	if (r == 0 && !cursor_mix(mixed, *at, ordered, &fault))
		r = handle_fault(t, &fault);
	free(ordered);
	return r;
}

/* Makes @edited, which this function owns, the origin. */
static int change_mix(struct tokend *t, struct cursor *edited, const char *const *names,
	const double *weights, uint32_t n, uint64_t *at)
{
	struct cursor mixed;
	struct fault fault;
	uint64_t covered = 0;
	int r = 0;

	if (!cursor_copy(&mixed, edited))
		r = handle_memory(t);
	else if (!cursor_seek(&mixed, t->taken, &fault))
		r = handle_fault(t, &fault);
	if (r == 0)
		r = edit_mix(t, &mixed, names, weights, n, at);
	if (r == 0)
		r = cover(t, edited, &mixed, &covered);
	if (r == 0)
		r = seek_edited(t, &mixed);
	cursor_free(&mixed);
	if (r < 0) {
		cursor_free(edited);
		return r;
	}
	t->committed = covered;
	position_set_origin(t, edited);
	return 0;
}

int mix_change(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t at, uint64_t *acts_from)
{
	struct cursor edited;

	if (!cursor_copy(&edited, &t->origin))
		return handle_memory(t);

	int r = add_missing(t, &edited, names, n);

	if (r < 0) {
		cursor_free(&edited);
		return r;
	}
	r = change_mix(t, &edited, names, weights, n, &at);
	if (r == 0 && acts_from)
		*acts_from = at;
	return r;
}

int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t *acts_from)
{
	int r = handle_usable(t);

	if (r < 0)
		return r;
	undo_forget(t);
	return mix_change(t, names, weights, n, TOKEND_SOON, acts_from);
}
