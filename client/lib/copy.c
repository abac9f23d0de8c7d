/*
 * Batches that go to a GPU. A slot is the daemon's again when two things are so: its batch was
 * taken, and the copy out of it is over. The copy may begin before the batch is taken, so that it
 * runs while the step before does.
 *
 * Rings of before a seek, or of a daemon that was lost, stay mapped while they are copied from.
 */
#include "client/lib/handle.h"

#include <inttypes.h>

/* ---- the driver ---- */

static int need_driver(struct tokend *t, int device)
{
	if (!t->pin)
		t->pin = pin_open(device, t->why, sizeof(t->why));
	return t->pin ? 0 : TOKEND_EREFUSED;
}

static bool need_copies(struct tokend *t, struct generation *g)
{
	if (!g->copies)
		g->copies = copies_new(t->pin, &g->ring);
	if (!g->copies)
		handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
	return g->copies;
}

bool handle_pin(struct tokend *t, struct generation *g)
{
	bool pinned =
		need_copies(t, g) && copies_register(g->copies, t->socket, t->why, sizeof(t->why));

	ring_say_pinned(&g->ring, pinned ? copies_registered(g->copies) : RING_UNPINNED);
	return pinned;
}

int tokend_pin(struct tokend *t, int device)
{
	int r = handle_check(t);

	if (r == 0)
		r = need_driver(t, device);
	if (r < 0)
		return r;
	if (device >= 0 && device != pin_device(t->pin))
		return handle_fail(t, TOKEND_EARGUMENT,
			"device: %d: this handle copies to device %d", device, pin_device(t->pin));
	t->pins = true;
	return handle_pin(t, t->now) ? 0 : TOKEND_EMEMORY;
}

/* ---- copies ---- */

/* Held, or the next one to be taken. */
static bool is_here(const struct tokend *t, const struct generation *g, uint64_t s)
{
	if (s < g->out.released || s > g->out.taken)
		return false;
	return s < g->out.taken ? !giveback_early(&g->out, s) : g == t->now && g->published > s;
}

int tokend_copy(
	struct tokend *t, const struct tokend_batch *batch, uint64_t device_pointer, void *stream)
{
	int r = handle_check(t);

	if (r < 0)
		return r;

	struct generation *g = *handle_generation(t, batch->handle);
	uint64_t s = handle_slot(batch->handle);

	if (!g || !is_here(t, g, s))
		return handle_fail(t, TOKEND_EARGUMENT, "batch: number %" PRIu64 " is not held",
			batch->number);
	if (handle_copies(g, s))
		return handle_fail(t, TOKEND_EARGUMENT,
			"batch: number %" PRIu64 " is being copied already", batch->number);
	if (device_pointer == 0)
		return handle_fail(t, TOKEND_EARGUMENT, "device_pointer: 0");
	r = need_driver(t, -1);
	if (r < 0)
		return r;
	if (!need_copies(t, g))
		return TOKEND_EMEMORY;
	if (!copies_start(g->copies, s, device_pointer, stream, t->why, sizeof(t->why)))
		return TOKEND_EARGUMENT;
	t->copying++;
	return 0;
}

int tokend_copied(const struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_forked(t))
		return 0;
	if (!batch)
		return handle_copies(t->now, t->now->out.taken);

	/* To users the handle does not change: it is only looked into. */
	const struct generation *g = *handle_generation((struct tokend *)t, batch->handle);

	return g && handle_copies(g, handle_slot(batch->handle));
}

uint64_t tokend_held(const struct tokend *t)
{
	const struct generation *g = t->now;
	uint64_t oldest = g->out.released;

	if (handle_forked(t))
		return 0;
	/* A slot that is being copied comes back by itself. */
	while (oldest < g->out.taken && handle_copies(g, oldest))
		oldest++;
	return g->out.taken - oldest;
}

void tokend_settle(struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_check(t) < 0)
		return;

	struct generation **at = handle_generation(t, batch->handle), *g = *at;
	uint64_t s = handle_slot(batch->handle);

	if (!g || handle_copies(g, s)) /* it comes back by itself */
		return;
	/* Out of memory that is not registered a driver has copied before it returns. */
	if (!g->copies || copies_registered(g->copies) == 0) {
		handle_return(t, at, s);
		return;
	}
	copies_settle(g->copies, s);
	t->copying++;
}

/* Of one ring. What is not taken yet of the current one stays in the queue, for it is going to be.
 */
static void collect(struct tokend *t, struct generation **at)
{
	struct generation *g = *at;
	uint64_t below = g == t->now ? g->out.taken : UINT64_MAX, s;

	if (!g->copies)
		return;
	/* Nothing will be full of a former ring; without a word from us it would stay. */
	if (g != t->now || giveback_full(&g->out))
		copies_sync(g->copies);
	while (*at == g && copies_over(g->copies, below, &s)) {
		t->copying--;
		if (s < g->out.taken) {
			handle_return(t, at, s);
		} else if (generation_idle(g)) {
			*at = g->older;
			generation_free(g, true);
		}
	}
}

void handle_collect(struct tokend *t)
{
	struct generation **at = &t->now;

	while (*at) {
		struct generation *g = *at;

		collect(t, at);
		if (*at == g)
			at = &g->older;
	}
}
