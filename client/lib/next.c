/*
 * The calls of every step. While the ring has batches ready, next() and release() use two shared
 * words and private memory and make no system call. All other work is done when the ring is empty.
 */
#include "client/lib/handle.h"

#include <inttypes.h>
#include <poll.h>

enum {
	SPIN_NS = 20000,    /* spin this long before a system call */
	ATTEND_MS = 50,	    /* limit of tokend_attend() */
	LATE_WAKE_MS = 250, /* a wake-up later than this counts as lost */
	LISTEN_MS = 1000,   /* between two reads of the socket while batches are ready */
};

_Static_assert(
	sizeof(struct tokend_row) == sizeof(struct ring_row) &&
		offsetof(struct tokend_row, position) == offsetof(struct ring_row, position) &&
		offsetof(struct tokend_row, epoch) == offsetof(struct ring_row, epoch) &&
		offsetof(struct tokend_row, window) == offsetof(struct ring_row, window) &&
		offsetof(struct tokend_row, offset) == offsetof(struct ring_row, offset) &&
		offsetof(struct tokend_row, dataset) == offsetof(struct ring_row, dataset) &&
		offsetof(struct tokend_row, shard) == offsetof(struct ring_row, shard),
	"tokend_batch.row points into the ring");

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static bool spin(const struct tokend *t)
{
	const struct mapping *m = t->mapping;
	int64_t until = wait_now() + SPIN_NS;

	do {
		for (int i = 0; i < 32; i++) {
			if (ring_published(&m->ring) > m->queue.taken)
				return true;
			pause_cpu();
		}
	} while (wait_now() < until);
	return false;
}

/* After a wait that timed out: if a slot is ready and no wake-up follows, the wake-up was lost. */
static int count_lost_wake(struct tokend *t)
{
	if (ring_published(&t->mapping->ring) <= t->mapping->queue.taken)
		return 0;

	int r = wait_ready(t, t->fd, POLLIN, wait_now() + LATE_WAKE_MS * INT64_C(1000000));

	if (r == 0)
		t->lost_wakes++;
	return r;
}

/* Shows the daemon when the wait for the next slot began, across calls that are interrupted. */
static void say_wait(struct tokend *t)
{
	uint64_t slot = t->mapping->queue.taken + 1;

	if (t->waits_for != slot)
		t->waits_since = wait_now();
	t->waits_for = slot;
	ring_say_waits_since(&t->mapping->ring, (uint64_t)t->waits_since);
}

/* Waits until the next slot may be ready, the daemon sent a message, a second has passed, or until
 * @until. */
static int wait_once(struct tokend *t, int64_t until)
{
	const struct mapping *m = t->mapping;
	int r;

	if (spin(t))
		return 0;
	r = position_check(t);
	if (r < 0)
		return r;
	say_wait(t);
	if (!ring_wait_begin(&m->ring, m->queue.taken)) {
		if (ring_daemon_waits(&m->ring))
			link_wake(t->fd);
		r = wait_ready(
			t, t->fd, POLLIN, wait_earlier(until, wait_now() + INT64_C(1000000000)));
		if (r == 0)
			r = count_lost_wake(t);
	}
	ring_wait_end(&m->ring);
	return r == 1 ? query_listen(t) : r;
}

/* An error found here is latched: it is returned after the batches that are ready. */
static void listen_if_due(struct tokend *t)
{
	int64_t now = wait_now();

	if (t->fd < 0 || now - t->listened < LISTEN_MS * INT64_C(1000000))
		return;
	t->listened = now;
	query_listen(t);
}

/* 1: a batch is ready, 0: the end of the stream, EAGAIN: not yet; or an error. */
static int look_for_batch(struct tokend *t)
{
	struct mapping *m = t->mapping;

	if (t->undo.mapping)
		undo_forget(t);
	m->published = ring_published(&m->ring);
	if (m->published > m->queue.taken) {
		listen_if_due(t);
		return 1;
	}
	if (atomic_load(&m->ring.header->end) <= m->queue.taken)
		return 0;
	if (t->failed)
		return handle_failed(t);
	if (release_queue_full(&m->queue))
		return handle_fail(t, TOKEND_EHELD, "slots",
			"all %u are held and the oldest was not released; release a batch, or "
			"attach with more slots",
			m->queue.slots);
	return TOKEND_EAGAIN;
}

/*
 * A caller that polls waits too. The daemon may be asleep until half the ring is free: without a
 * wake-up a trainer that holds more than half would starve.
 */
static int request_wake(struct tokend *t)
{
	const struct ring *ring = &t->mapping->ring;

	say_wait(t);
	if (t->fd >= 0 && !ring_wait_begin(ring, t->mapping->queue.taken) &&
		ring_daemon_waits(ring))
		link_wake(t->fd);
	return TOKEND_EAGAIN;
}

/* Looks for a batch, and waits for it if @wait. Published batches are returned before any error. */
static int find_slot(struct tokend *t, bool wait)
{
	struct waiting slow = {0};

	slow_begin(t, &slow);
	for (bool again = false;; again = true) {
		int r = look_for_batch(t);

		if (r == 1 && slow_over(t, &slow) < 0)
			return TOKEND_EAGAIN;
		if (r != TOKEND_EAGAIN)
			return r;
		if (again && !wait)
			return request_wake(t);
		if (t->fd < 0) {
			r = revive(t, wait);
			slow_begin(t, &slow);
		} else if (!wait) {
			r = query_listen(t);
		} else {
			r = slow_look(t, &slow);
			if (r == 0)
				r = wait_once(t, slow_end(t, &slow));
		}
		if (r < 0 && !t->failed)
			return r;
	}
}

/* Describes the slot after the last one taken. */
static void describe(const struct tokend *t, struct tokend_batch *batch)
{
	const struct mapping *m = t->mapping;
	const struct ring_geometry *geometry = &m->ring.geometry;
	uint64_t s = m->queue.taken;
	const struct ring_slot *slot = ring_slot(&m->ring, s);

	*batch = (struct tokend_batch){
		.tokens = ring_slot_data(&m->ring, s),
		.row = (const struct tokend_row *)ring_rows(&m->ring, s),
		.rows = geometry->rows,
		.rows_valid = slot->rows_valid,
		.window_tokens = geometry->window_tokens,
		.token_bytes = geometry->token_bytes,
		.position = slot->position,
		.next = order_rank_next(t->taken, t->step, t->end),
		.number = t->number,
		.handle = slots_handle(m, s),
	};
}

/*
 * Takes the slot after the last one taken, which is published. A batch that cannot be recorded is
 * not taken.
 */
static int take(struct tokend *t, struct tokend_batch *batch)
{
	struct mapping *m = t->mapping;
	uint64_t s = m->queue.taken;
	const struct ring_slot *slot = ring_slot(&m->ring, s);
	uint64_t due = t->taken + t->rank * t->micro_batch;

	if (slot->rows_valid > 0 && slot->position != due)
		return handle_latch(
			t, handle_fail(t, TOKEND_EPROTOCOL, "position",
				   "bug in tokend, please report it: the daemon served "
				   "%" PRIu64 " instead of %" PRIu64 "; seek to continue",
				   slot->position, due));

	describe(t, batch);
	if (__builtin_expect(t->record != NULL, 0)) {
		int r = recording_rows(t, batch->row, slot->rows_valid, batch->tokens,
			(size_t)batch->window_tokens * batch->token_bytes, batch->next);

		if (r < 0)
			return r;
	}
	t->taken = batch->next;
	t->number++;
	m->queue.taken++;
	m->held++;
	return 1;
}

static inline bool ready(const struct tokend *t)
{
	return !handle_forked(t) && t->mapping->published > t->mapping->queue.taken;
}

/* 1: the next batch is ready, 0: the stream has ended; or an error. */
static int wait_for_batch(struct tokend *t)
{
	int r = handle_usable(t);

	if (r == 0)
		r = look_for_batch(t);
	if (r == TOKEND_EAGAIN) {
		int64_t begin = wait_now();

		r = find_slot(t, true);
		t->waited_ns += (uint64_t)(wait_now() - begin);
	}
	return r;
}

int tokend_next(struct tokend *t, struct tokend_batch *batch)
{
	int r = ready(t) ? 1 : wait_for_batch(t);

	return r == 1 ? take(t, batch) : r;
}

int tokend_peek(struct tokend *t, struct tokend_batch *batch, int wait)
{
	int r = wait ? wait_for_batch(t) : handle_usable(t);

	if (!wait && r == 0)
		r = find_slot(t, false);
	if (r == 1)
		describe(t, batch);
	return r;
}

int tokend_try_next(struct tokend *t, struct tokend_batch *batch)
{
	int r = ready(t) ? 1 : handle_usable(t);

	if (r == 0)
		r = find_slot(t, false);
	return r == 1 ? take(t, batch) : r;
}

/*
 * Each call is a separate search: an attach contains the position, and batches may be taken before
 * the next call.
 */
int tokend_attend(struct tokend *t)
{
	int64_t until = wait_now() + ATTEND_MS * INT64_C(1000000);
	int r = handle_usable(t);

	if (r == 0 && t->fd >= 0)
		r = query_listen(t);
	if (r < 0 || t->fd >= 0)
		return r < 0 ? r : 1;
	search_end(&t->search);
	while ((r = revive(t, false)) == 0 && t->search.fd >= 0 &&
		(r = wait_ready(t, t->search.fd, POLLIN, until)) == 1)
		;
	search_end(&t->search);
	return r;
}
