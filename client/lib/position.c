/* The position of a session: cursor, commit, seek. */
#include "client/lib/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int position_check(struct tokend *t)
{
	for (const struct mapping *m = t->mapping; m; m = m->older)
		if (!mapping_sound(m))
			return handle_broken(t, "released ≤ taken ≤ published ≤ released + slots");
	if (t->origin.next > t->committed || t->committed > t->taken || t->taken > t->end)
		return handle_broken(t, "origin ≤ committed ≤ taken ≤ end");
	if (t->rank >= t->world || t->step != t->world * t->micro_batch)
		return handle_broken(t, "rank < world, step = world × micro_batch");
	for (uint32_t i = 0; i < t->skips; i++)
		if (t->skip[i].from >= t->skip[i].to || t->skip[i].to > t->taken ||
			(i > 0 && t->skip[i].from < t->skip[i - 1].to))
			return handle_broken(t, "skips ascend, up to the position taken");
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
	return handle_forked(t) ? 0 : t->mapping->contents;
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

static bool is_skipped(const struct tokend *t, uint64_t position)
{
	for (uint32_t i = 0; i < t->skips; i++)
		if (position > t->skip[i].from && position < t->skip[i].to)
			return true;
	return false;
}

int tokend_commit(struct tokend *t, uint64_t next)
{
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (next < t->committed || next > t->taken || is_skipped(t, next))
		return handle_fail(t, TOKEND_EARGUMENT, "next",
			"%" PRIu64 " is not the next of a batch that was taken and not committed; "
			"committed: %" PRIu64 ", taken: %" PRIu64,
			next, t->committed, t->taken);
	if (next > t->committed)
		r = recording_commit(t, next);
	if (r < 0)
		return r;
	t->committing = true;
	t->committed = next;

	uint32_t done = 0;

	/* The last batch before a skip commits the skip, too. */
	for (; done < t->skips && t->skip[done].from <= t->committed; done++)
		if (t->skip[done].from == t->committed)
			t->committed = t->skip[done].to;
	t->skips -= done;
	if (done > 0)
		memmove(t->skip, t->skip + done, t->skips * sizeof(*t->skip));
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
	t->skips = 0;
}

bool position_make_room(struct tokend *t)
{
	struct skip *longer = realloc(t->skip, (t->skips + 1) * sizeof(*longer));

	if (longer)
		t->skip = longer;
	return longer;
}

/* ---- seeking ---- */

/*
 * Attaches at @target and adopts the new ring. Returns 1 and the daemon's @cursor, or an error.
 * @waits: wait while refused for now. An operator's edit does not wait: all ranks carry it out at
 * the same step, and would wait for this one.
 */
static int attach_at(
	struct tokend *t, const struct target *target, bool waits, struct cursor *cursor)
{
	struct mapping *m = NULL;
	int fd = -1;
	int r = attach_find(t, target, t->options.deadline_ms, waits, &m, cursor, &fd);

	/* After an error the trainer takes what is there. */
	if (r == 1 && !t->failed && attach_same(t, m, cursor) < 0) {
		mapping_close(m, true);
		cursor_free(cursor);
		link_close(fd);
		r = handle_latch(t, TOKEND_EREFUSED);
	}
	if (r == 1) {
		undo_keep_mapping(t);
		attach_adopt(t, m, fd);
		search_end(&t->search);
	}
	return r;
}

/*
 * Changes rank, world or micro-batch at the position taken. Batches taken before can still be
 * committed.
 */
static int seek_here(struct tokend *t, struct target *target)
{
	const struct cursor here = position_cursor(t, t->taken);
	struct cursor cursor;

	target->cursor = t->bytes;
	target->cursor_bytes = cursor_encode(&here, t->bytes, LIMIT_CURSOR_BYTES);

	int r = attach_at(t, target, true, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	position_set_target(t, target);
	return position_check(t);
}

/* @again: to the beginning of another pass. Replaces what a former seek without rows noted. */
static int seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch, bool again)
{
	struct target target = {.cursor = cursor,
		.cursor_bytes = cursor_bytes,
		.rank = rank,
		.world = world,
		.micro_batch = micro_batch};
	struct cursor origin;
	int r = handle_usable(t);

	if (r == 0)
		r = attach_check(t, &target);
	if (r < 0)
		return r;
	undo_forget(t);
	if (!cursor)
		return seek_here(t, &target);
	if (cursor_bytes == 0 || cursor_bytes > LIMIT_CURSOR_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT, "cursor", "%zu bytes; a cursor has 1 to %d",
			cursor_bytes, LIMIT_CURSOR_BYTES);
	r = attach_at(t, &target, true, &origin);
	if (r != 1)
		return r;
	position_start(t, &origin, &target);
	recording_pass(t, again);
	recording_moved(t);
	return position_check(t);
}

int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	return seek(t, cursor, cursor_bytes, rank, world, micro_batch, false);
}

int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	return seek(t, cursor, cursor_bytes, rank, world, micro_batch, true);
}

int seek_edited(struct tokend *t, const struct cursor *edited)
{
	struct target target = {.cursor = t->bytes,
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch};
	struct cursor cursor;

	target.cursor_bytes = cursor_encode(edited, t->bytes, LIMIT_CURSOR_BYTES);

	int r = attach_at(t, &target, false, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	position_set_target(t, &target);
	return 0;
}
