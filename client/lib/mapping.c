/*
 * This process's mappings of rings, and the slots of held batches. Everything received from the
 * daemon is checked before it is used: in memory that could shrink a load would be a SIGBUS, and
 * wrong sizes would lead outside the mapping.
 *
 * A handle has one current mapping, from the last attach. Older ones stay while batches of them are
 * held, so that a batch outlives its daemon. A forked child does not inherit them: it would keep a
 * dead trainer's ring alive.
 */
#include "client/lib/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* tokend_batch.handle: the slot's number in the low bits, the mapping's above. */
enum { SLOTS_BITS = 48 };

/* ---- mapping ---- */

struct memory {
	const char *name;
	int fd;
	uint64_t bytes;
	int protection;
};

static void *map_memory(const struct memory *s, struct fault *fault)
{
	struct stat st;
	int seals = fcntl(s->fd, F_GET_SEALS);

	if (fstat(s->fd, &st) != 0) {
		fault_errno(fault, errno, "ring", "%s memory: %s", s->name, strerror(errno));
		return NULL;
	}
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
		fault_set(fault, FAULT_PROTOCOL, "ring", "the %s memory can be resized (no seals)",
			s->name);
		return NULL;
	}
	if ((uint64_t)st.st_size != s->bytes || s->bytes == 0) {
		fault_set(fault, FAULT_PROTOCOL, "ring",
			"the %s memory has %lld bytes instead of %llu", s->name,
			(long long)st.st_size, (unsigned long long)s->bytes);
		return NULL;
	}

	void *at = mmap(NULL, s->bytes, s->protection, MAP_SHARED, s->fd, 0);

	if (at == MAP_FAILED || madvise(at, s->bytes, MADV_DONTFORK) != 0) {
		fault_errno(fault, errno, "ring", "cannot map the %s memory of %llu bytes: %s",
			s->name, (unsigned long long)s->bytes, strerror(errno));
		if (at != MAP_FAILED)
			munmap(at, s->bytes);
		return NULL;
	}
	return at;
}

struct mapping *mapping_open(
	int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes, struct fault *fault)
{
	const struct memory meta_memory = {"meta", meta_fd, meta_bytes, PROT_READ};
	const struct memory data_memory = {"data", data_fd, data_bytes, PROT_READ | PROT_WRITE};
	struct mapping *m = NULL;
	struct ring ring;
	void *data = NULL;
	void *meta = map_memory(&meta_memory, fault);

	if (!meta)
		return NULL;
	data = map_memory(&data_memory, fault);
	if (!data)
		goto fail;
	if (!ring_open(&ring, meta, meta_bytes, data, data_bytes, fault))
		goto fail;
	m = calloc(1, sizeof(*m) + release_queue_words(ring.geometry.slots) * sizeof(m->bits[0]));
	if (!m) {
		fault_memory(fault);
		goto fail;
	}
	m->ring = ring;
	m->meta = meta;
	m->data = data;
	m->queue = (struct release_queue){.slots = ring.geometry.slots, .bits = m->bits};
	return m;
fail:
	munmap(meta, meta_bytes);
	if (data)
		munmap(data, data_bytes);
	return NULL;
}

bool mapping_sound(const struct mapping *m)
{
	const struct release_queue *q = &m->queue;

	return q->released <= q->taken && q->taken <= m->published &&
	       m->published - q->released <= q->slots && m->held <= q->taken - q->released &&
	       q->slots == m->ring.geometry.slots;
}

bool mapping_idle(const struct mapping *m)
{
	return !m->undoable && m->held == 0;
}

void mapping_close(struct mapping *m, bool mapped)
{
	if (!m)
		return;
	if (mapped) {
		if (m->gone)
			m->gone(m->context, m->data, m->ring.geometry.control_at);
		munmap(m->meta, m->ring.geometry.meta_bytes);
		munmap(m->data, m->ring.geometry.data_bytes);
	}
	free(m->shards);
	free(m);
}

/* ---- slots ---- */

uint64_t slots_handle(const struct mapping *m, uint64_t s)
{
	return m->id << SLOTS_BITS | s;
}

static uint64_t slots_number(uint64_t handle)
{
	return handle & ((UINT64_C(1) << SLOTS_BITS) - 1);
}

/* Points to the link to @handle's mapping; the link is NULL if there is no such mapping. */
static struct mapping **slots_mapping(struct tokend *t, uint64_t handle)
{
	struct mapping **at = &t->mapping;

	while (*at && (*at)->id << SLOTS_BITS != handle >> SLOTS_BITS << SLOTS_BITS)
		at = &(*at)->older;
	return at;
}

/* Releases slot @s of mapping *@at. False if it was not held. A former mapping that nothing needs
 * any more is closed, and *@at becomes the next one. */
static bool slots_return(struct tokend *t, struct mapping **at, uint64_t s)
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

	const struct annotations a = ring_annotations(ring, index);
	uint32_t n = *a.count, most = ring->geometry.window_tokens - 1;

	*count = n < most ? n : most;
	return a.start;
}

const uint8_t *tokend_loss_mask(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row)
{
	uint32_t index;
	const struct ring *ring = find_row(t, batch, row, &index);

	return ring ? ring_annotations(ring, index).loss_mask : NULL;
}
