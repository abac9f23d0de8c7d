/*
 * A slot is released when its batch was taken and the copy from it has ended. The copy may begin
 * before the batch is taken, so that it runs during the step before.
 *
 * Rings from before a seek, or of a lost daemon, stay mapped while they are copied from.
 */
#include "client/lib/gpu_copy.h"

#include "client/lib/slots.h"

#include <inttypes.h>

/* ---- the driver ---- */

static int need_driver(struct tokend *t, int device)
{
	struct fault fault;

	if (t->pin)
		return 0;
	t->pin = pin_open(device, &fault);
	if (t->pin)
		return 0;
	handle_fault(t, &fault);
	return TOKEND_EREFUSED; /* any failure: the driver cannot be used */
}

static bool need_copies(struct tokend *t, struct mapping *m)
{
	if (!m->copies)
		m->copies = copies_new(t->pin, &m->ring);
	if (!m->copies)
		handle_memory(t);
	return m->copies;
}

bool copy_pin(struct tokend *t, struct mapping *m)
{
	struct fault fault;
	bool pinned = false;

	if (need_copies(t, m)) {
		pinned = copies_register(m->copies, t->socket, &fault);
		if (!pinned)
			handle_fault(t, &fault);
	}
	ring_say_pinned(&m->ring, pinned ? copies_registered(m->copies) : RING_UNPINNED);
	return pinned;
}

int tokend_pin(struct tokend *t, int device)
{
	int r = handle_usable(t);

	if (r == 0)
		r = need_driver(t, device);
	if (r < 0)
		return r;
	if (device >= 0 && device != pin_device(t->pin))
		return handle_fail(t, TOKEND_EARGUMENT, "device", "%d; this handle uses device %d",
			device, pin_device(t->pin));
	t->pins = true;
	return copy_pin(t, t->mapping) ? 0 : TOKEND_EMEMORY;
}

/* ---- copies ---- */

/* True if slot @s is held, or the next one to be taken. */
static bool is_available(const struct tokend *t, const struct mapping *m, uint64_t s)
{
	if (s < m->queue.released || s > m->queue.taken)
		return false;
	return s < m->queue.taken ? !release_queue_has(&m->queue, s)
				  : m == t->mapping && m->published > s;
}

int tokend_copy(
	struct tokend *t, const struct tokend_batch *batch, uint64_t device_pointer, void *stream)
{
	struct fault fault;
	int r = handle_usable(t);

	if (r < 0)
		return r;

	struct mapping *m = *slots_mapping(t, batch->handle);
	uint64_t s = slots_number(batch->handle);

	if (!m || !is_available(t, m, s))
		return handle_fail(t, TOKEND_EARGUMENT, "batch", "number %" PRIu64 " is not held",
			batch->number);
	if (mapping_copies(m, s))
		return handle_fail(t, TOKEND_EARGUMENT, "batch",
			"number %" PRIu64 " is already being copied", batch->number);
	if (device_pointer == 0)
		return handle_fail(t, TOKEND_EARGUMENT, "device_pointer", "is 0");
	r = need_driver(t, -1);
	if (r < 0)
		return r;
	if (!need_copies(t, m))
		return TOKEND_EMEMORY;
	if (!copies_start(m->copies, s, device_pointer, stream, &fault))
		return handle_fault(t, &fault);
	t->copying++;
	return 0;
}

int tokend_copied(const struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_forked(t))
		return 0;
	if (!batch)
		return mapping_copies(t->mapping, t->mapping->queue.taken);

	/* slots_mapping() only reads the handle. */
	const struct mapping *m = *slots_mapping((struct tokend *)t, batch->handle);

	return m && mapping_copies(m, slots_number(batch->handle));
}

uint64_t tokend_held(const struct tokend *t)
{
	const struct mapping *m = t->mapping;
	uint64_t oldest = m->queue.released;

	if (handle_forked(t))
		return 0;
	/* A slot that is being copied is released automatically. */
	while (oldest < m->queue.taken && mapping_copies(m, oldest))
		oldest++;
	return m->queue.taken - oldest;
}

void tokend_settle(struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_usable(t) < 0)
		return;

	struct mapping **at = slots_mapping(t, batch->handle), *m = *at;
	uint64_t s = slots_number(batch->handle);

	if (!m || mapping_copies(m, s)) /* released automatically */
		return;
	/* Copies from unregistered memory have ended when the driver returns. */
	if (!m->copies || copies_registered(m->copies) == 0) {
		slots_return(t, at, s);
		return;
	}
	copies_settle(m->copies, s);
	t->copying++;
}

/*
 * Releases slots of one mapping. Slots of the current one that are not taken yet stay in the queue.
 */
static void collect(struct tokend *t, struct mapping **at)
{
	struct mapping *m = *at;
	uint64_t below = m == t->mapping ? m->queue.taken : UINT64_MAX, s;

	if (!m->copies)
		return;
	/* A former ring never becomes full, so it must be checked each time. */
	if (m != t->mapping || release_queue_full(&m->queue))
		copies_sync(m->copies);
	while (*at == m && copies_over(m->copies, below, &s)) {
		t->copying--;
		if (s < m->queue.taken) {
			slots_return(t, at, s);
		} else if (mapping_idle(m)) {
			*at = m->older;
			mapping_close(m, true);
		}
	}
}

void copy_collect(struct tokend *t)
{
	struct mapping **at = &t->mapping;

	while (*at) {
		struct mapping *m = *at;

		collect(t, at);
		if (*at == m)
			at = &m->older;
	}
}
