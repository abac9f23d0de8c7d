/*
 * Where a session is in the order, and every way to be elsewhere. A change is always the same: edit the
 * cursor, then attach at it. The old ring is given up only when the new one is here, so a refusal leaves
 * everything as it was.
 */
#include "handle.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- saying where we are ---- */

static void forget_spoken(struct tokend *t)
{
	if (t->spoken_ok)
		cursor_free(&t->spoken);
	t->spoken_ok = false;
}

const struct cursor *handle_speak(struct tokend *t, uint64_t position)
{
	struct cursor_why why;

	if (t->spoken_ok && position < t->spoken.next)
		forget_spoken(t);
	if (!t->spoken_ok && !cursor_copy(&t->spoken, &t->origin)) {
		handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
		return NULL;
	}
	t->spoken_ok = true;

	bool there = cursor_seek(&t->spoken, position, &why);

	assert(there); /* origin covers all that is asked for */
	return &t->spoken;
}

/* The cursor that is spoken of. To users the handle does not change when a cached copy moves along. */
static const struct cursor *current(const struct tokend *t)
{
	return handle_speak((struct tokend *)t, handle_position(t));
}

int64_t tokend_cursor(const struct tokend *t, void *bytes, size_t capacity)
{
	struct tokend *handle = (struct tokend *)t;
	int r = handle_check(handle);

	if (r < 0)
		return r;

	const struct cursor *cursor = current(t);

	if (!cursor)
		return TOKEND_EMEMORY;

	size_t n = cursor_encode(cursor, bytes, capacity);

	return n ? (int64_t)n
		 : handle_fail(handle, TOKEND_EMEMORY,
			   "capacity: %zu bytes are too few for the cursor, %d always hold it", capacity,
			   TOKEND_CURSOR_BYTES);
}

uint64_t tokend_fingerprint(const struct tokend *t)
{
	const struct cursor *cursor = handle_forked(t) ? NULL : current(t);

	return cursor ? cursor_fingerprint(cursor, t->world, t->micro) : 0;
}

/* ---- committing ---- */

/* Was a batch handed out whose next is @position? */
static bool was_a_next(const struct tokend *t, uint64_t position)
{
	uint32_t i = t->legs - 1;

	while (i > 0 && t->leg[i].start >= position)
		i--;
	return position == t->end || position == t->taken ||
	       (position > t->leg[i].start && (position - t->leg[i].start) % t->leg[i].step == 0);
}

int tokend_commit(struct tokend *t, uint64_t next)
{
	int r = handle_check(t);

	if (r < 0)
		return r;
	if (next <= t->committed || next > t->taken || !was_a_next(t, next))
		return handle_fail(t, TOKEND_EARGUMENT,
			"next: %" PRIu64 " is not that of a batch taken and not yet committed: %" PRIu64
			" is committed, %" PRIu64 " taken",
			next, t->committed, t->taken);
	t->committing = true;
	t->committed = next;
	while (t->legs > 1 && t->leg[1].start <= next)
		memmove(t->leg, t->leg + 1, --t->legs * sizeof(*t->leg));
	return 0;
}

/* ---- going elsewhere ---- */

int handle_check_target(struct tokend *t, const struct target *target)
{
	if (target->world < 1 || target->world > LIMIT_WORLD)
		return handle_fail(t, TOKEND_EARGUMENT, "world: %" PRIu64 ", must be 1 to %" PRIu64,
			target->world, (uint64_t)LIMIT_WORLD);
	if (target->rank >= target->world)
		return handle_fail(t, TOKEND_EARGUMENT, "rank: %" PRIu64 " is not below world, %" PRIu64,
			target->rank, target->world);
	if (target->micro < 1 || target->micro > LIMIT_MICRO_BATCH)
		return handle_fail(t, TOKEND_EARGUMENT, "micro_batch: %u, must be 1 to %d", target->micro,
			LIMIT_MICRO_BATCH);
	return 0;
}

static void set_target(struct tokend *t, const struct target *target)
{
	t->rank = target->rank;
	t->world = target->world;
	t->micro = target->micro;
	t->step = target->world * target->micro;
	t->number = 0;
	t->batches = atomic_load(&t->now->ring.header->end);
	t->failed = 0;
}

static void set_origin(struct tokend *t, const struct cursor *origin)
{
	forget_spoken(t);
	cursor_free(&t->origin);
	t->origin = *origin;
	t->end = cursor_end(origin);
}

void handle_start(struct tokend *t, const struct cursor *origin, const struct target *target)
{
	set_origin(t, origin);
	set_target(t, target);
	t->taken = t->committed = origin->next;
	t->legs = 1;
	t->leg[0] = (struct leg){t->taken, t->step};
}

/* Attaches at @target and makes the new ring ours. 1 and the cursor that the daemon made of it, or an error.
 */
static int go(struct tokend *t, const struct target *target, struct cursor *cursor)
{
	struct generation *g = NULL;
	int fd = -1;
	int r = handle_find(t, target, t->deadline_ms, &g, cursor, &fd);

	if (r == 1) {
		handle_adopt(t, g, fd);
		handle_stop_search(&t->search);
	}
	return r;
}

/* Here, but as another rank or with other batches. What is taken and not committed stays so. */
static int seek_here(struct tokend *t, struct target *target)
{
	const struct cursor *here = handle_speak(t, t->taken);
	struct leg *leg = realloc(t->leg, (t->legs + 1) * sizeof(*leg));
	struct cursor cursor;

	if (leg)
		t->leg = leg;
	if (!here || !leg)
		return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
	target->cursor = t->bytes;
	target->cursor_bytes = cursor_encode(here, t->bytes, LIMIT_CURSOR_BYTES);

	int r = go(t, target, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	set_target(t, target);
	t->leg[t->legs++] = (struct leg){t->taken, t->step};
	return 0;
}

int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank, uint64_t world,
	uint32_t micro_batch)
{
	struct target target = {.cursor = cursor,
		.cursor_bytes = cursor_bytes,
		.rank = rank,
		.world = world,
		.micro = micro_batch};
	struct cursor origin;
	int r = handle_check(t);

	if (r == 0)
		r = handle_check_target(t, &target);
	if (r < 0)
		return r;
	if (!cursor)
		return seek_here(t, &target);
	if (cursor_bytes == 0 || cursor_bytes > LIMIT_CURSOR_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT, "cursor: %zu bytes, a cursor has 1 to %d",
			cursor_bytes, LIMIT_CURSOR_BYTES);
	r = go(t, &target, &origin);
	if (r != 1)
		return r;
	handle_start(t, &origin, &target);
	return 0;
}

/* ---- another mix ---- */

/* The weights by their place in the cursor. */
static int order_weights(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	double *ordered, bool *named)
{
	for (uint32_t i = 0; i < n; i++) {
		int d = cursor_find(&t->origin, names[i]);

		if (d < 0)
			return handle_fail(t, TOKEND_EARGUMENT,
				"mix: stream %s has no dataset %s, it has %s%s", t->stream, names[i],
				t->origin.dataset[0].name, t->origin.datasets > 1 ? " and others" : "");
		if (named[d])
			return handle_fail(t, TOKEND_EARGUMENT, "mix: dataset %s is named twice", names[i]);
		named[d] = true;
		ordered[d] = weights[i];
	}
	return 0;
}

/* origin with the new mix, which acts from *@at on. It goes on covering what is not committed. */
static int edit_mix(struct tokend *t, struct cursor *edited, const double *weights, uint64_t *at)
{
	const struct cursor *here = handle_speak(t, t->taken);
	struct cursor_why why;

	if (!here)
		return TOKEND_EMEMORY;
	*at = cursor_mix_at(here);
	if (here->segment[0]->start != edited->segment[0]->start) {
		/* The pending mix has begun: it becomes the current one, which makes room for another. */
		if (t->committing && t->committed < here->segment[0]->start)
			return handle_fail(t, TOKEND_EAGAIN,
				"mix: the one announced before acts from %" PRIu64 ", only %" PRIu64
				" is committed: commit first",
				here->segment[0]->start, t->committed);
		if (!cursor_seek(edited, handle_position(t), &why))
			goto refused;
	}
	if (cursor_mix(edited, *at, weights, &why))
		return 0;
refused:
	return handle_fail(t, TOKEND_EARGUMENT, "%s: %s", why.field, why.text);
}

/* Attaches where we are, at the edited cursor. */
static int go_edited(struct tokend *t, const struct cursor *edited)
{
	struct target target = {.cursor = t->bytes, .rank = t->rank, .world = t->world, .micro = t->micro};
	struct cursor here, cursor;
	struct cursor_why why;

	if (!cursor_copy(&here, edited))
		return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");

	bool there = cursor_seek(&here, t->taken, &why);

	assert(there);
	target.cursor_bytes = cursor_encode(&here, t->bytes, LIMIT_CURSOR_BYTES);
	cursor_free(&here);

	int r = go(t, &target, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	set_target(t, &target);
	return 0;
}

static int change_mix(struct tokend *t, const double *weights, uint64_t *acts_from)
{
	struct cursor edited;
	uint64_t at;

	if (!cursor_copy(&edited, &t->origin))
		return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");

	int r = edit_mix(t, &edited, weights, &at);

	if (r == 0)
		r = go_edited(t, &edited);
	if (r < 0) {
		cursor_free(&edited);
		return r;
	}
	/* What lies before a mix that is over can no longer be committed. */
	if (!t->committing && edited.next == t->taken)
		t->committed = t->taken;
	set_origin(t, &edited);
	if (acts_from)
		*acts_from = at;
	return 0;
}

int tokend_set_mix(
	struct tokend *t, const char *const *names, const double *weights, uint32_t n, uint64_t *acts_from)
{
	int r = handle_check(t);

	if (r < 0)
		return r;

	double *ordered = calloc(t->origin.datasets, sizeof(*ordered));
	bool *named = calloc(t->origin.datasets, sizeof(*named));

	if (ordered && named)
		r = order_weights(t, names, weights, n, ordered, named);
	else
		r = handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
	if (r == 0)
		r = change_mix(t, ordered, acts_from);
	free(ordered);
	free(named);
	return r;
}

/* ---- cursors as values ---- */

static bool decode(struct cursor *cursor, const void *bytes, size_t n, char *why, size_t why_bytes)
{
	struct cursor_why reason;

	if (cursor_decode(cursor, bytes, n, &reason))
		return true;
	if (why && why_bytes)
		snprintf(why, why_bytes, "%s: %s", reason.field, reason.text);
	return false;
}

int64_t tokend_cursor_seek(const void *cursor, size_t cursor_bytes, uint64_t position, void *to,
	size_t capacity, char *why, size_t why_bytes)
{
	struct cursor_why reason = {"capacity", "too few bytes for the cursor"};
	struct cursor c;
	int64_t n = TOKEND_EARGUMENT;

	if (!decode(&c, cursor, cursor_bytes, why, why_bytes))
		return n;
	if (cursor_seek(&c, position, &reason)) {
		n = (int64_t)cursor_encode(&c, to, capacity);
		if (n == 0)
			n = TOKEND_EMEMORY;
	}
	if (n < 0 && why && why_bytes)
		snprintf(why, why_bytes, "%s: %s", reason.field, reason.text);
	cursor_free(&c);
	return n;
}

int tokend_cursor_position(
	const void *cursor, size_t cursor_bytes, uint64_t *position, char *why, size_t why_bytes)
{
	struct cursor c;

	if (!decode(&c, cursor, cursor_bytes, why, why_bytes))
		return TOKEND_EARGUMENT;
	*position = c.next;
	cursor_free(&c);
	return 0;
}
