#include "client/lib/mix.h"

#include "client/lib/position.h"
#include "client/lib/seek.h"
#include "client/lib/undo.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
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
 * *@covered: from which position on @edited, which is at the position taken, can be the new origin.
 * That is the committed one. If it had no room for the mixes since then and the trainer never
 * committed, it is the taken one, as no earlier one will be requested.
 */
static int cover(struct tokend *t, const struct cursor *edited, uint64_t *covered)
{
	bool room = edited->segment[0]->start <= t->committed;

	*covered = room ? t->committed : t->taken;
	return room || !t->committing
		       ? 0
		       : handle_fail(t, TOKEND_EAGAIN, "mix",
				 "more mixes began since the committed position %" PRIu64
				 " than a cursor holds; commit first",
				 t->committed);
}

/* Changes the mix of @edited, a cursor at the position taken, from *@at on, and attaches there. */
static int change_mix(struct tokend *t, struct cursor *edited, const char *const *names,
	const double *weights, uint32_t n, uint64_t *at)
{
	double ordered[LIMIT_DATASETS];
	struct fault fault;
	uint64_t covered = t->taken;
	int r = order_weights(t, edited, names, weights, n, ordered);

	if (*at == TOKEND_SOON)
		*at = cursor_mix_at(edited);
	if (r == 0 && !cursor_mix(edited, *at, ordered, &fault))
		r = handle_fault(t, &fault);
	if (r == 0)
		r = cover(t, edited, &covered);
	if (r == 0)
		r = seek_edited(t, edited);
	edited->next = covered;
	return r;
}

int mix_change(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t at, uint64_t *acts_from)
{
	const struct cursor here = position_cursor(t, t->taken);
	struct cursor edited;

	if (!cursor_copy(&edited, &here))
		return handle_memory(t);

	uint64_t oldest = edited.segment[0]->start;
	int r = add_missing(t, &edited, names, n);

	if (r == 0)
		r = change_mix(t, &edited, names, weights, n, &at);
	if (r < 0) {
		cursor_free(&edited);
		return r;
	}
	if (edited.segment[0]->start > oldest) {
		char line[160];

		snprintf(line, sizeof(line),
			"the cursor has no room for mixes before position %" PRIu64
			" any more; to look further back, keep a checkpoint from before now",
			edited.segment[0]->start);
		handle_tell(t, line);
	}
	t->committed = edited.next;
	position_set_origin(t, &edited);
	if (acts_from)
		*acts_from = at;
	return 0;
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
