/*
 * The calls of every step. On a ready ring next() and release() touch two shared words and private
 * memory, and make no system call; whatever else there is to do is reached only when the ring is
 * empty.
 */
#include "client/lib/handle.h"

#include <inttypes.h>
#include <poll.h>

enum {
	SPIN_NS = 20000,    /* a slot that is about to come is not worth a system call */
	ATTEND_MS = 50,	    /* what looking for a lost daemon may take while there are batches */
	LATE_WAKE_MS = 250, /* a wake-up still on its way after this is counted as lost */
	COPY_NS = 200000,   /* between two looks whether a copy to a GPU is over */
	HEAR_MS = 1000, /* the daemon may have something to say although batches are always there */
};

_Static_assert(
	sizeof(struct tokend_row) == sizeof(struct ring_row) &&
		offsetof(struct tokend_row, position) == offsetof(struct ring_row, position) &&
		offsetof(struct tokend_row, epoch) == offsetof(struct ring_row, epoch) &&
		offsetof(struct tokend_row, window) == offsetof(struct ring_row, window) &&
		offsetof(struct tokend_row, offset) == offsetof(struct ring_row, offset) &&
		offsetof(struct tokend_row, dataset) == offsetof(struct ring_row, dataset) &&
		offsetof(struct tokend_row, shard) == offsetof(struct ring_row, shard),
	"rows are handed out as they lie in the ring");

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
	const struct generation *g = t->now;
	int64_t until = handle_clock() + SPIN_NS;

	do {
		for (int i = 0; i < 32; i++) {
			if (ring_published(&g->ring) > g->out.taken)
				return true;
			pause_cpu();
		}
	} while (handle_clock() < until);
	return false;
}

/* The wait ended by the clock. A slot that is there although no byte came, nor is coming, was not
 * announced.
 */
static int count_lost_wake(struct tokend *t)
{
	if (ring_published(&t->now->ring) <= t->now->out.taken)
		return 0;

	int r = handle_doze(t, t->fd, POLLIN, handle_clock() + LATE_WAKE_MS * INT64_C(1000000));

	if (r == 0)
		t->lost_wakes++;
	return r;
}

/* Until the next slot may be there, the daemon said something, or a second has passed. */
static int wait_once(struct tokend *t)
{
	const struct generation *g = t->now;
	int r = 0;

	if (giveback_full(&g->out)) { /* of copies: it is not the daemon that is waited for */
		r = handle_doze(t, t->fd, POLLIN, handle_clock() + COPY_NS);
		return r == 1 ? handle_listen(t) : r;
	}
	if (spin(t))
		return 0;
	if (!ring_wait_begin(&g->ring, g->out.taken)) {
		if (ring_daemon_waits(&g->ring))
			link_wake(t->fd);
		r = handle_doze(t, t->fd, POLLIN,
			handle_clock() + (t->copying ? COPY_NS : INT64_C(1000000000)));
		if (r == 0 && !t->copying)
			r = count_lost_wake(t);
	}
	ring_wait_end(&g->ring);
	return r == 1 ? handle_listen(t) : r;
}

/* An error that this finds holds, and is returned when the batches that are there have been taken.
 */
static void hear_out(struct tokend *t)
{
	int64_t now = handle_clock();

	if (t->fd < 0 || now - t->heard < HEAR_MS * INT64_C(1000000))
		return;
	t->heard = now;
	handle_listen(t);
}

/* 1: a batch is there, 0: the end, EAGAIN: not yet, or why there will be none. */
static int look(struct tokend *t)
{
	struct generation *g = t->now;

	if (t->kept.ring)
		handle_forget(t);
	if (t->copying)
		handle_collect(t);
	g->published = ring_published(&g->ring);
	if (g->published > g->out.taken) {
		hear_out(t);
		return 1;
	}
	if (atomic_load(&g->ring.header->end) <= g->out.taken)
		return 0;
	if (t->failed)
		return handle_failed(t);
	if (giveback_full(&g->out) && !t->copying)
		return handle_fail(t, TOKEND_EHELD,
			"slots: all %u are taken and the oldest batch was not released: release "
			"it, or "
			"attach with more slots",
			g->out.slots);
	return TOKEND_EAGAIN;
}

/* Who polls waits as well: a daemon that sleeps until half the ring is free is told, or one who
 * holds more would starve it. */
static int ask_for_one(struct tokend *t)
{
	const struct ring *ring = &t->now->ring;

	if (t->fd >= 0 && !ring_wait_begin(ring, t->now->out.taken) && ring_daemon_waits(ring))
		link_wake(t->fd);
	return TOKEND_EAGAIN;
}

/* What is published comes first, whatever else has happened meanwhile. */
static int find_slot(struct tokend *t, bool wait)
{
	for (bool again = false;; again = true) {
		int r = look(t);

		if (r != TOKEND_EAGAIN)
			return r;
		if (again && !wait)
			return ask_for_one(t);
		if (t->fd < 0)
			r = handle_revive(t, wait);
		else
			r = wait ? wait_once(t) : handle_listen(t);
		if (r < 0 && !t->failed)
			return r;
	}
}

/* The slot behind the last one taken, as a batch. */
static void describe(const struct tokend *t, struct tokend_batch *batch)
{
	const struct generation *g = t->now;
	const struct ring_geometry *geometry = &g->ring.geometry;
	uint64_t s = g->out.taken;
	const struct ring_slot *slot = ring_slot(&g->ring, s);

	*batch = (struct tokend_batch){
		.tokens = ring_slot_data(&g->ring, s),
		.row = (const struct tokend_row *)ring_rows(&g->ring, s),
		.rows = geometry->rows,
		.rows_valid = slot->rows_valid,
		.window_tokens = geometry->window_tokens,
		.token_bytes = geometry->token_bytes,
		.position = slot->position,
		.next = order_rank_next(t->taken, t->step, t->end),
		.number = t->number,
		.handle = g->id << HANDLE_BITS | s,
	};
}

/* Hands out the slot behind the last one taken, which is published. What cannot be recorded is not
 * taken. */
static int hand_out(struct tokend *t, struct tokend_batch *batch)
{
	struct generation *g = t->now;
	uint64_t s = g->out.taken;
	const struct ring_slot *slot = ring_slot(&g->ring, s);
	uint64_t due = t->taken + t->rank * t->micro_batch;

	if (slot->rows_valid > 0 && slot->position != due)
		return handle_latch(t, handle_fail(t, TOKEND_EPROTOCOL,
					       "position: the daemon served %" PRIu64
					       " where %" PRIu64 " was due: seek, and report this",
					       slot->position, due));

	describe(t, batch);
	if (__builtin_expect(t->record != NULL, 0)) {
		int r = handle_record(t, batch->row, slot->rows_valid, batch->tokens,
			(size_t)batch->window_tokens * batch->token_bytes, batch->next);

		if (r < 0)
			return r;
	}
	t->taken = batch->next;
	t->number++;
	g->out.taken++;
	g->held++;
	return 1;
}

static inline bool ready(const struct tokend *t)
{
	return !handle_forked(t) && t->now->published > t->now->out.taken && !t->copying;
}

/* 1: the next batch is there, 0: there is none, or an error. */
static int wait_for_one(struct tokend *t)
{
	int r = handle_check(t);

	if (r == 0)
		r = look(t);
	if (r == TOKEND_EAGAIN) {
		int64_t begin = handle_clock();

		r = find_slot(t, true);
		t->waited_ns += (uint64_t)(handle_clock() - begin);
	}
	return r;
}

int tokend_next(struct tokend *t, struct tokend_batch *batch)
{
	int r = ready(t) ? 1 : wait_for_one(t);

	return r == 1 ? hand_out(t, batch) : r;
}

int tokend_peek(struct tokend *t, struct tokend_batch *batch, int wait)
{
	int r = wait ? wait_for_one(t) : handle_check(t);

	if (!wait && r == 0)
		r = find_slot(t, false);
	if (r == 1)
		describe(t, batch);
	return r;
}

int tokend_try_next(struct tokend *t, struct tokend_batch *batch)
{
	if (ready(t))
		return hand_out(t, batch);

	int r = handle_check(t);

	if (r == 0)
		r = find_slot(t, false);
	return r == 1 ? hand_out(t, batch) : r;
}

/*
 * A search of its own each time: what is said at attach is where we stand, and by the next call
 * batches may have been taken from the ring.
 */
int tokend_attend(struct tokend *t)
{
	int64_t until = handle_clock() + ATTEND_MS * INT64_C(1000000);
	int r = handle_check(t);

	if (r == 0 && t->fd >= 0)
		r = handle_listen(t);
	if (r < 0 || t->fd >= 0)
		return r < 0 ? r : 1;
	handle_stop_search(&t->search);
	do
		r = handle_revive(t, false);
	while (r == 0 && t->search.fd >= 0 && handle_doze(t, t->search.fd, POLLIN, until) == 1);
	handle_stop_search(&t->search);
	return r;
}

struct generation **handle_generation(struct tokend *t, uint64_t handle)
{
	struct generation **at = &t->now;

	while (*at && (*at)->id << HANDLE_BITS != handle >> HANDLE_BITS << HANDLE_BITS)
		at = &(*at)->older;
	return at;
}

/* The ring that holds @row of the batch, which is its row *@index there. NULL: none does. */
static const struct ring *find_row(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *index)
{
	/* To users the handle does not change: it is only looked into. */
	const struct generation *g = *handle_generation((struct tokend *)t, batch->handle);

	if (handle_forked(t) || !g || row >= g->ring.geometry.rows)
		return NULL;
	*index = (uint32_t)(handle_slot(batch->handle) % g->ring.geometry.slots) *
			 g->ring.geometry.rows +
		 row;
	return &g->ring;
}

const uint32_t *tokend_documents(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *count)
{
	uint32_t index;
	const struct ring *ring = find_row(t, batch, row, &index);

	*count = 0;
	if (!ring || !ring->geometry.documents)
		return NULL;

	uint32_t n = *ring_document_count(ring, index), most = ring->geometry.window_tokens - 1;

	*count = n < most ? n : most;
	return ring_document_start(ring, index);
}

const uint8_t *tokend_loss_mask(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row)
{
	uint32_t index;
	const struct ring *ring = find_row(t, batch, row, &index);

	return ring && ring->geometry.loss_mask ? ring_loss_mask(ring, index) : NULL;
}

bool handle_return(struct tokend *t, struct generation **at, uint64_t s)
{
	struct generation *g = *at;

	if (!giveback_return(&g->out, s))
		return false;
	g->held--;
	if (g == t->now) {
		uint64_t wake_at = ring_release(&g->ring, g->out.released);

		if (wake_at != 0 && wake_at != g->answered && t->fd >= 0) {
			g->answered = wake_at;
			link_wake(t->fd);
		}
	} else if (generation_idle(g)) {
		*at = g->older;
		generation_free(g, true);
	}
	return true;
}

void tokend_release(struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_check(t) < 0)
		return;

	struct generation **at = handle_generation(t, batch->handle);
	uint64_t s = handle_slot(batch->handle);

	if (*at && handle_copies(*at, s))
		handle_fail(t, TOKEND_EARGUMENT,
			"batch: number %" PRIu64
			" is being copied to a GPU, and comes back by itself",
			batch->number);
	else if (!*at || !handle_return(t, at, s))
		handle_fail(t, TOKEND_EARGUMENT, "batch: number %" PRIu64 " was released before",
			batch->number);
}
