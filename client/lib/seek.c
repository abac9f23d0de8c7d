/*
 * Where a session is in the order, and every way to be elsewhere. A change is always the same: edit
 * the cursor, then attach at it. The old ring is given up only when the new one is here, so a
 * refusal leaves everything as it was.
 */
#include "client/lib/handle.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- saying where we are ---- */

static void forget_spoken(struct tokend *t)
{
	if (t->spoken_ok)
		cursor_free(&t->spoken);
	t->spoken_ok = false;
}

const struct cursor *handle_speak(struct tokend *t, uint64_t position)
{
	struct fault why;

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

/* The cursor that is spoken of. To users the handle does not change when a cached copy moves along.
 */
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
			   "capacity: %zu bytes are too few for the cursor, %d always hold it",
			   capacity, TOKEND_CURSOR_BYTES);
}

uint64_t tokend_fingerprint(const struct tokend *t)
{
	const struct cursor *cursor = handle_forked(t) ? NULL : current(t);

	return cursor ? cursor_fingerprint(cursor, t->world, t->micro_batch) : 0;
}

/* ---- committing ---- */

/* Was a batch handed out whose next is @position? */
static bool was_a_next(const struct tokend *t, uint64_t position)
{
	uint32_t i = t->legs - 1;

	while (i > 0 && t->leg[i].start >= position)
		i--;
	if (i + 1 < t->legs && position > t->leg[i + 1].from)
		return false; /* skipped */
	return position == t->end || position == t->taken ||
	       (position > t->leg[i].start && (position - t->leg[i].start) % t->leg[i].step == 0);
}

int tokend_commit(struct tokend *t, uint64_t next)
{
	int r = handle_check(t);

	if (r < 0)
		return r;
	if (next == t->committed) { /* again, or before the first batch */
		t->committing = true;
		return 0;
	}
	if (next < t->committed || next > t->taken || !was_a_next(t, next))
		return handle_fail(t, TOKEND_EARGUMENT,
			"next: %" PRIu64
			" is not that of a batch taken and not yet committed: %" PRIu64
			" is committed, %" PRIu64 " taken",
			next, t->committed, t->taken);
	r = handle_record_commit(t, next);
	if (r < 0)
		return r;
	t->committing = true;
	t->committed = next;
	/* With the last batch before a skip the skip is committed, too. */
	for (uint32_t i = 1; i < t->legs; i++)
		if (t->leg[i].from == t->committed)
			t->committed = t->leg[i].start;
	while (t->legs > 1 && t->leg[1].start <= t->committed)
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
		return handle_fail(t, TOKEND_EARGUMENT,
			"rank: %" PRIu64 " is not below world, %" PRIu64, target->rank,
			target->world);
	if (target->micro_batch < 1 || target->micro_batch > LIMIT_MICRO_BATCH)
		return handle_fail(t, TOKEND_EARGUMENT, "micro_batch: %u, must be 1 to %d",
			target->micro_batch, LIMIT_MICRO_BATCH);
	return 0;
}

static void set_target(struct tokend *t, const struct target *target)
{
	t->rank = target->rank;
	t->world = target->world;
	t->micro_batch = target->micro_batch;
	t->step = target->world * target->micro_batch;
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
	handle_record_drop(t);
	set_origin(t, origin);
	set_target(t, target);
	t->taken = t->committed = origin->next;
	t->legs = 1;
	t->leg[0] = (struct leg){t->taken, t->step, t->taken};
}

/* The present ring and its session, if they may be wanted again. The next one to be adopted takes
 * their place. */
static void keep_ring(struct tokend *t)
{
	struct kept *k = &t->kept;

	if (k->origin.datasets == 0)
		return;
	t->now->kept = true;
	k->ring = t->now;
	k->fd = t->fd;
	k->late = t->late;
	t->fd = -1;
}

/*
 * Attaches at @target and makes the new ring ours. 1 and the cursor that the daemon made of it, or
 * an error.
 * @waits: a refusal that passes is waited for. An operator's edit fails at once instead: all ranks
 * carry it out at one step, and those that could would wait for us.
 */
static int go(struct tokend *t, const struct target *target, bool waits, struct cursor *cursor)
{
	const struct patience patience = {
		.connect_ms = t->deadline_ms, .deadline_ms = t->deadline_ms, .never = !waits};
	struct generation *g = NULL;
	int fd = -1;
	int r = handle_find(t, target, &patience, &g, cursor, &fd);

	if (r == 1) {
		keep_ring(t);
		handle_adopt(t, g, fd);
		handle_stop_search(&t->search);
	}
	return r;
}

/* Room for another leg. */
static bool lengthen(struct tokend *t)
{
	struct leg *leg = realloc(t->leg, (t->legs + 1) * sizeof(*leg));

	if (leg)
		t->leg = leg;
	return leg;
}

/* Here, but as another rank or with other batches. What is taken and not committed stays so. */
static int seek_here(struct tokend *t, struct target *target)
{
	const struct cursor *here = handle_speak(t, t->taken);
	struct cursor cursor;

	if (!here || !lengthen(t))
		return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
	target->cursor = t->bytes;
	target->cursor_bytes = cursor_encode(here, t->bytes, LIMIT_CURSOR_BYTES);

	int r = go(t, target, true, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	set_target(t, target);
	t->leg[t->legs++] = (struct leg){t->taken, t->step, t->taken};
	return 0;
}

int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	struct target target = {.cursor = cursor,
		.cursor_bytes = cursor_bytes,
		.rank = rank,
		.world = world,
		.micro_batch = micro_batch};
	struct cursor origin;
	int r = handle_check(t);

	if (r == 0)
		r = handle_check_target(t, &target);
	if (r < 0)
		return r;
	handle_forget(t);
	if (!cursor)
		return seek_here(t, &target);
	if (cursor_bytes == 0 || cursor_bytes > LIMIT_CURSOR_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT, "cursor: %zu bytes, a cursor has 1 to %d",
			cursor_bytes, LIMIT_CURSOR_BYTES);
	r = go(t, &target, true, &origin);
	if (r != 1)
		return r;
	handle_start(t, &origin, &target);
	handle_record_place(t);
	return 0;
}

int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch)
{
	int r = handle_check(t);

	if (r < 0)
		return r;
	handle_record_pass(t, true);
	r = tokend_seek(t, cursor, cursor_bytes, rank, world, micro_batch);
	if (r < 0)
		handle_record_pass(t, false);
	return r;
}

/* ---- edits of where we are ---- */

static int refused(struct tokend *t, const struct fault *why)
{
	return handle_fail(t, TOKEND_EARGUMENT, "%s: %s", why->field, why->text);
}

static int no_memory(struct tokend *t)
{
	return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
}

/* Attaches at @edited, as who we are. */
static int go_edited(struct tokend *t, const struct cursor *edited)
{
	struct target target = {.cursor = t->bytes,
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch};
	struct cursor cursor;

	target.cursor_bytes = cursor_encode(edited, t->bytes, LIMIT_CURSOR_BYTES);

	int r = go(t, &target, false, &cursor);

	if (r != 1)
		return r;
	cursor_free(&cursor);
	set_target(t, &target);
	return 0;
}

int handle_skip(struct tokend *t, uint64_t samples, uint64_t *to)
{
	const struct cursor *here = handle_speak(t, t->taken);
	const struct target target = {
		.rank = t->rank, .world = t->world, .micro_batch = t->micro_batch};
	struct fault why;
	struct cursor edited;

	if (!here)
		return TOKEND_EMEMORY;
	if (!lengthen(t) || !cursor_copy(&edited, here))
		return no_memory(t);

	int r = cursor_skip(&edited, samples, &why) ? go_edited(t, &edited) : refused(t, &why);

	*to = edited.next;
	if (r == 0 && handle_position(t) == t->taken) {
		handle_start(t, &edited, &target);
		handle_record_skip(t);
		return 0;
	}
	cursor_free(&edited);
	if (r < 0)
		return r;
	/* What is taken and not committed stays so. */
	t->leg[t->legs++] = (struct leg){*to, t->step, t->taken};
	t->taken = *to;
	handle_record_skip(t);
	return 0;
}

/* ---- another mix ---- */

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends dataset @name as it stands in the stream at @begin. */
static int add_dataset(
	struct tokend *t, struct cursor *edited, const struct cursor *begin, const char *name)
{
	struct cursor_source source;
	struct fault why;
	int d = cursor_find(begin, name);

	if (d < 0)
		return handle_fail(t, TOKEND_EARGUMENT,
			"mix: stream %s has no dataset %s, it has %s%s: add it to the daemon's "
			"config first, "
			"and restart that",
			t->stream, name, begin->dataset[0].name,
			begin->datasets > 1 ? " and others" : "");
	cursor_source(begin, (uint32_t)d, &source);
	return cursor_add(edited, &source, &why) ? 0 : refused(t, &why);
}

/* The datasets among @names that the cursor lacks, in an order that does not depend on the
 * caller's. */
static int add_missing(
	struct tokend *t, struct cursor *edited, const char *const *names, uint32_t n)
{
	const char **missing = malloc((n + 1) * sizeof(*missing));
	struct cursor begin = {0};
	struct fault why;
	uint32_t count = 0;
	int64_t r = 0;

	if (!missing)
		return no_memory(t);
	for (uint32_t i = 0; i < n; i++)
		if (cursor_find(edited, names[i]) < 0)
			missing[count++] = names[i];
	if (count > 0) {
		qsort(missing, count, sizeof(*missing), compare_names);
		r = tokend_stream(t, t->saved, LIMIT_CURSOR_BYTES);
		if (r > 0)
			r = cursor_decode(&begin, t->saved, (size_t)r, &why) ? 0 : refused(t, &why);
	}
	for (uint32_t i = 0; r == 0 && i < count; i++)
		if (i == 0 || strcmp(missing[i], missing[i - 1]) != 0)
			r = add_dataset(t, edited, &begin, missing[i]);
	cursor_free(&begin);
	free(missing);
	return (int)r;
}

/* @weights by their place in the cursor, which has all of @names. */
static int order_weights(struct tokend *t, const struct cursor *cursor, const char *const *names,
	const double *weights, uint32_t n, double *ordered)
{
	for (uint32_t d = 0; d < cursor->datasets; d++)
		ordered[d] = -1;
	for (uint32_t i = 0; i < n; i++) {
		int d = cursor_find(cursor, names[i]);

		if (!isfinite(weights[i]) || weights[i] < 0)
			return handle_fail(t, TOKEND_EARGUMENT,
				"mix: weight of dataset %s: %g, must be a finite number ≥ 0",
				names[i], weights[i]);
		if (ordered[d] >= 0)
			return handle_fail(
				t, TOKEND_EARGUMENT, "mix: dataset %s is named twice", names[i]);
		ordered[d] = weights[i];
	}
	for (uint32_t d = 0; d < cursor->datasets; d++)
		if (ordered[d] < 0)
			ordered[d] = 0;
	return 0;
}

/* @edited with the mixes of @mixed, which is it at a later place and another mix there, in front of
 * which those that have begun since stay. */
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
 * @edited as the new origin: it goes on covering all that is not committed. What a cursor cannot
 * hold is given up by a trainer that never committed, which is not going to ask for it.
 */
static int cover(struct tokend *t, struct cursor *edited, struct cursor *mixed, uint64_t *covered)
{
	struct fault why;
	bool moved = !t->committing || cursor_seek(edited, t->committed, &why);

	assert(moved); /* origin covers all that is asked for */
	*covered = t->committed;
	if (!join(edited, mixed))
		return no_memory(t);
	if (cursor_encode(edited, t->saved, LIMIT_CURSOR_BYTES) > 0)
		return 0;
	if (t->committing)
		return handle_fail(t, TOKEND_EAGAIN,
			"mix: more mixes than a cursor holds have begun since %" PRIu64
			", the last that is committed: commit first",
			t->committed);
	moved = cursor_seek(edited, t->taken, &why);
	assert(moved);
	*covered = t->taken;
	return 0;
}

/* @mixed, which is where we are, with another mix from *@at on. */
static int edit_mix(struct tokend *t, struct cursor *mixed, const char *const *names,
	const double *weights, uint32_t n, uint64_t *at)
{
	double *ordered = malloc(mixed->datasets * sizeof(*ordered));
	struct fault why;
	int r = ordered ? order_weights(t, mixed, names, weights, n, ordered) : no_memory(t);

	if (*at == TOKEND_SOON)
		*at = cursor_mix_at(mixed);
	if (r == 0 && !cursor_mix(mixed, *at, ordered, &why))
		r = refused(t, &why);
	free(ordered);
	return r;
}

/* @edited becomes origin, and is the callee's. */
static int change_mix(struct tokend *t, struct cursor *edited, const char *const *names,
	const double *weights, uint32_t n, uint64_t *at)
{
	struct cursor mixed;
	struct fault why;
	uint64_t covered = 0;
	int r = 0;

	if (!cursor_copy(&mixed, edited))
		r = no_memory(t);
	else if (!cursor_seek(&mixed, t->taken, &why))
		r = refused(t, &why);
	if (r == 0)
		r = edit_mix(t, &mixed, names, weights, n, at);
	if (r == 0)
		r = cover(t, edited, &mixed, &covered);
	if (r == 0)
		r = go_edited(t, &mixed);
	cursor_free(&mixed);
	if (r < 0) {
		cursor_free(edited);
		return r;
	}
	t->committed = covered;
	set_origin(t, edited);
	return 0;
}

int handle_mix(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t at, uint64_t *acts_from)
{
	struct cursor edited;

	if (!cursor_copy(&edited, &t->origin))
		return no_memory(t);

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

/* ---- taking an edit back ---- */

static struct generation **find_kept(struct tokend *t)
{
	struct generation **at = &t->now;

	while (*at && *at != t->kept.ring)
		at = &(*at)->older;
	return at;
}

void handle_forget(struct tokend *t)
{
	struct kept *k = &t->kept;
	struct generation **at = k->ring ? find_kept(t) : NULL, *g = at ? *at : NULL;

	cursor_free(&k->origin);
	if (g) {
		g->kept = false;
		if (g != t->now && generation_idle(g)) {
			*at = g->older;
			generation_free(g, true);
		}
		if (k->fd >= 0)
			close(k->fd);
	}
	*k = (struct kept){.fd = -1};
}

int handle_remember(struct tokend *t)
{
	handle_forget(t);
	if (!cursor_copy(&t->kept.origin, &t->origin))
		return no_memory(t);
	t->kept.taken = t->taken;
	t->kept.committed = t->committed;
	t->kept.number = t->number;
	t->kept.batches = t->batches;
	return 0;
}

/* The ring that was kept is the present one again. */
static void readopt(struct tokend *t, const struct kept *k)
{
	struct generation **at = find_kept(t), *g = *at;

	assert(g && g != t->now);
	*at = g->older;
	g->kept = false;
	handle_adopt(t, g, k->fd);
	t->late = k->late;
	/* What came back meanwhile the daemon was not told. */
	ring_release(&g->ring, g->out.released);
	if (t->fd >= 0)
		link_wake(t->fd);
}

int tokend_undo(struct tokend *t)
{
	const struct kept k = t->kept;
	int r = handle_check(t);

	if (r < 0)
		return r;
	if (!k.ring)
		return 0;
	readopt(t, &k);
	t->kept = (struct kept){.fd = -1};
	handle_stop_search(&t->search);
	t->failed = 0;
	while (t->legs > 1 && t->leg[t->legs - 1].start > k.taken)
		t->legs--;
	if (t->leg[0].start > k.taken)
		t->leg[0] = (struct leg){k.taken, t->step, k.taken};
	t->taken = k.taken;
	t->committed = k.committed;
	t->number = k.number;
	t->batches = k.batches;
	set_origin(t, &k.origin);
	handle_record_place(t);
	return 1;
}

int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t *acts_from)
{
	int r = handle_check(t);

	if (r < 0)
		return r;
	handle_forget(t);
	return handle_mix(t, names, weights, n, TOKEND_SOON, acts_from);
}
