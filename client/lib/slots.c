#include "client/lib/slots.h"

#include "client/lib/connect.h"

#include <inttypes.h>

struct mapping **slots_mapping(struct tokend *t, uint64_t handle)
{
	struct mapping **at = &t->mapping;

	while (*at && (*at)->id << SLOTS_BITS != handle >> SLOTS_BITS << SLOTS_BITS)
		at = &(*at)->older;
	return at;
}

bool slots_return(struct tokend *t, struct mapping **at, uint64_t s)
{
	struct mapping *m = *at;

	if (!release_queue_return(&m->queue, s))
		return false;
	m->held--;
	if (m == t->mapping) {
		uint64_t wake_at = ring_release(&m->ring, m->queue.released);

		if (wake_at != 0 && wake_at != m->answered && t->fd >= 0) {
			m->answered = wake_at;
			link_wake(t->fd);
		}
	} else if (mapping_idle(m)) {
		*at = m->older;
		mapping_close(m, true);
	}
	return true;
}

void tokend_release(struct tokend *t, const struct tokend_batch *batch)
{
	if (handle_usable(t) < 0)
		return;

	struct mapping **at = slots_mapping(t, batch->handle);
	uint64_t s = slots_number(batch->handle);

	if (!*at || !slots_return(t, at, s))
		handle_fail(t, TOKEND_EARGUMENT, "batch", "number %" PRIu64 " was already released",
			batch->number);
}

/* The ring that contains row @row of the batch, and *@index, its number there. NULL: none does. */
static const struct ring *find_row(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *index)
{
	/* slots_mapping() only reads the handle. */
	const struct mapping *m = *slots_mapping((struct tokend *)t, batch->handle);

	if (handle_forked(t) || !m || row >= m->ring.geometry.rows)
		return NULL;
	*index = (uint32_t)(slots_number(batch->handle) % m->ring.geometry.slots) *
			 m->ring.geometry.rows +
		 row;
	return &m->ring;
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
