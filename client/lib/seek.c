#include "client/lib/seek.h"

#include "client/lib/position.h"
#include "client/lib/recording.h"
#include "client/lib/undo.h"

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

	if (!position_make_room(t))
		return handle_memory(t);
	target->cursor = t->bytes;
	target->cursor_bytes = cursor_encode(&here, t->bytes, LIMIT_CURSOR_BYTES);

	int r = attach_at(t, target, true, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	position_set_target(t, target);
	position_add_grid(t, t->taken);
	return position_check(t);
}

static int seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	struct target target = {.cursor = cursor,
		.cursor_bytes = cursor_bytes,
		.rank = rank,
		.world = world,
		.micro_batch = micro_batch};
	struct cursor origin;
	int r = attach_check(t, &target);

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
	recording_moved(t);
	return position_check(t);
}

/* @again: to the beginning of another pass. Replaces what a former seek without rows noted. */
static int seek_as(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch, bool again)
{
	int r = handle_usable(t);

	if (r < 0)
		return r;
	recording_pass(t, again);
	r = seek(t, cursor, cursor_bytes, rank, world, micro_batch);
	if (r < 0)
		recording_pass(t, false);
	return r;
}

int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	return seek_as(t, cursor, cursor_bytes, rank, world, micro_batch, false);
}

int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	return seek_as(t, cursor, cursor_bytes, rank, world, micro_batch, true);
}

/* ---- edits ---- */

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

int seek_skip(struct tokend *t, uint64_t samples, uint64_t *to)
{
	const struct cursor here = position_cursor(t, t->taken);
	const struct target target = {
		.rank = t->rank, .world = t->world, .micro_batch = t->micro_batch};
	struct fault fault;
	struct cursor edited;

	if (!position_make_room(t) || !cursor_copy(&edited, &here))
		return handle_memory(t);

	int r = cursor_skip(&edited, samples, &fault) ? seek_edited(t, &edited)
						      : handle_fault(t, &fault);

	*to = edited.next;
	if (r == 0 && handle_position(t) == t->taken) {
		position_start(t, &edited, &target);
		recording_skipped(t);
		return 0;
	}
	cursor_free(&edited);
	if (r < 0)
		return r;
	/* Batches taken before can still be committed. */
	position_add_grid(t, *to);
	t->taken = *to;
	recording_skipped(t);
	return 0;
}
