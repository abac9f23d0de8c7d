#include "client/lib/position.h"

#include "client/lib/recording.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int position_check(struct tokend *t)
{
	const struct grid *last = t->grids > 0 ? &t->grid[t->grids - 1] : NULL;

	for (const struct mapping *m = t->mapping; m; m = m->older)
		if (!mapping_sound(m))
			return handle_broken(t, "released ≤ taken ≤ published ≤ released + slots");
	if (t->origin.next > t->committed || t->committed > t->taken || t->taken > t->end)
		return handle_broken(t, "origin ≤ committed ≤ taken ≤ end");
	if (t->rank >= t->world || t->step != t->world * t->micro_batch)
		return handle_broken(t, "rank < world, step = world × micro_batch");
	if (!last || last->step != t->step || last->start > t->taken)
		return handle_broken(t, "the last grid is that of the batches taken");
	for (const struct grid *grid = t->grid; grid < last; grid++)
		if (grid[0].start > grid[1].start || grid[1].from > grid[1].start)
			return handle_broken(t, "grids ascend");
	return 0;
}

struct cursor position_cursor(const struct tokend *t, uint64_t position)
{
	struct cursor cursor = t->origin;

	cursor.next = position;
	return cursor;
}

int64_t tokend_cursor(const struct tokend *t, void *bytes, size_t capacity)
{
	struct tokend *handle = (struct tokend *)t;
	int r = handle_usable(handle);

	if (r < 0)
		return r;

	const struct cursor cursor = position_cursor(t, handle_position(t));
	size_t n = cursor_encode(&cursor, bytes, capacity);

	return n ? (int64_t)n
		 : handle_fail(handle, TOKEND_EMEMORY, "capacity",
			   "%zu bytes are too few for the cursor; %d are always enough", capacity,
			   TOKEND_CURSOR_BYTES);
}

uint64_t tokend_fingerprint(const struct tokend *t)
{
	const struct cursor cursor = position_cursor(t, handle_position(t));

	return handle_forked(t) ? 0 : cursor_fingerprint(&cursor, t->world, t->micro_batch);
}

uint64_t tokend_contents(const struct tokend *t)
{
	return handle_forked(t) ? 0 : t->contents;
}

uint64_t tokend_position(const struct tokend *t)
{
	return handle_position(t);
}

uint64_t tokend_taken(const struct tokend *t)
{
	return t->taken;
}

/* ---- committing ---- */

/* True if a batch with this `next` was taken. */
static bool was_a_next(const struct tokend *t, uint64_t position)
{
	uint32_t i = t->grids - 1;

	while (i > 0 && t->grid[i].start >= position)
		i--;
	if (i + 1 < t->grids && position > t->grid[i + 1].from)
		return false; /* skipped */
	return position == t->end || position == t->taken ||
	       (position > t->grid[i].start &&
		       (position - t->grid[i].start) % t->grid[i].step == 0);
}

int tokend_commit(struct tokend *t, uint64_t next)
{
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (next == t->committed) { /* committed again, or before the first batch */
		t->committing = true;
		return 0;
	}
	if (next < t->committed || next > t->taken || !was_a_next(t, next))
		return handle_fail(t, TOKEND_EARGUMENT, "next",
			"%" PRIu64 " is not the next of a batch that was taken and not committed; "
			"committed: %" PRIu64 ", taken: %" PRIu64,
			next, t->committed, t->taken);
	r = recording_commit(t, next);
	if (r < 0)
		return r;
	t->committing = true;
	t->committed = next;
	/* The last batch before a skip commits the skip, too. */
	for (uint32_t i = 1; i < t->grids; i++)
		if (t->grid[i].from == t->committed)
			t->committed = t->grid[i].start;
	while (t->grids > 1 && t->grid[1].start <= t->committed)
		memmove(t->grid, t->grid + 1, --t->grids * sizeof(*t->grid));
	return 0;
}

/* ---- moving ---- */

void position_set_target(struct tokend *t, const struct target *target)
{
	t->rank = target->rank;
	t->world = target->world;
	t->micro_batch = target->micro_batch;
	t->step = target->world * target->micro_batch;
	t->number = 0;
	t->batches = atomic_load(&t->mapping->ring.header->end);
	t->failed = 0;
}

void position_set_origin(struct tokend *t, const struct cursor *origin)
{
	cursor_free(&t->origin);
	t->origin = *origin;
	t->end = cursor_end(origin);
	recording_origin(t);
}

void position_start(struct tokend *t, const struct cursor *origin, const struct target *target)
{
	recording_drop(t);
	position_set_origin(t, origin);
	position_set_target(t, target);
	t->taken = t->committed = origin->next;
	t->grids = 1;
	t->grid[0] = (struct grid){t->taken, t->step, t->taken};
}

bool position_make_room(struct tokend *t)
{
	struct grid *longer = realloc(t->grid, (t->grids + 1) * sizeof(*longer));

	if (longer)
		t->grid = longer;
	return longer;
}

void position_add_grid(struct tokend *t, uint64_t start)
{
	t->grid[t->grids++] = (struct grid){start, t->step, t->taken};
}
