#include "proto/ring.h"

#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

uint64_t ring_slot_offset(const struct ring_geometry *g, uint64_t s)
{
	uint64_t index = s % g->slots;

	/* Few rings are larger than a chunk, and this is called for each row. */
	if (g->slots * g->slot_stride <= LIMIT_CHUNK_BYTES)
		return index * g->slot_stride;

	uint64_t per = LIMIT_CHUNK_BYTES / g->slot_stride;

	return index / per * LIMIT_CHUNK_BYTES + index % per * g->slot_stride;
}

void ring_geometry_check(const struct ring_geometry *g)
{
	assert(g->slots >= 1 && g->slots <= LIMIT_SLOTS);
	assert(g->rows >= 1 && g->rows <= LIMIT_MICRO_BATCH);
	assert((uint64_t)g->slots * g->rows <= LIMIT_RING_ROWS);
	assert(g->window_tokens >= 1 && g->window_tokens <= LIMIT_CHUNK_BYTES);
	assert(g->token_bytes >= 1 && g->token_bytes <= 8);
	assert(g->slot_bytes == (uint64_t)g->rows * g->window_tokens * g->token_bytes);
	assert(g->slot_stride >= g->slot_bytes && g->slot_stride % 64 == 0);
	assert(g->slot_stride <= LIMIT_CHUNK_BYTES);
	assert(g->control_at % RING_PAGE == 0);
	assert(g->control_at >= ring_slot_offset(g, g->slots - 1) + g->slot_stride);
	assert(g->data_bytes == g->control_at + RING_PAGE);
	assert(g->meta_bytes % RING_PAGE == 0 && g->meta_bytes > RING_PAGE);
	assert(g->documents <= 1 && g->loss_mask <= 1);
}

void ring_check(const struct ring *ring)
{
	const struct ring_geometry *g = &ring->geometry;

	ring_geometry_check(g);
	assert(ring->header && ring->data);
	assert((char *)ring->slot == (char *)ring->header + RING_PAGE);
	assert(ring->row == (struct ring_row *)(ring->slot + g->slots));
	assert((uint8_t *)ring->control == ring->data + g->control_at);
	assert((g->documents != 0) == (ring->document_count != NULL));
	assert((g->documents != 0) == (ring->document_start != NULL));
	assert((g->loss_mask != 0) == (ring->loss_mask != NULL));
}

static bool within(uint64_t value, uint64_t limit, const char *field, struct fault *fault)
{
	return (value >= 1 && value <= limit) ||
	       fault_set(fault, FAULT_ATTACH, field, PHRASE_RANGE, value, limit);
}

bool ring_geometry(struct ring_geometry *g, uint64_t slots, uint64_t rows, uint64_t window_tokens,
	uint64_t token_bytes, unsigned annotations, struct fault *fault)
{
	if (!within(slots, LIMIT_SLOTS, "slots", fault) ||
		!within(rows, LIMIT_MICRO_BATCH, "micro_batch", fault) ||
		!within(window_tokens, LIMIT_CHUNK_BYTES, "window", fault) ||
		!within(token_bytes, 8, "token bytes", fault))
		return false;

	uint64_t slot_bytes = rows * window_tokens * token_bytes; /* < 2^16 · 2^30 · 2^3 */

	if (slot_bytes > LIMIT_CHUNK_BYTES)
		return fault_set(fault, FAULT_ATTACH, "micro_batch",
			"%" PRIu64 " rows × %" PRIu64 " tokens × %" PRIu64 " bytes = %" PRIu64
			" bytes a slot; must be at most 1 GiB (%" PRIu64
			"): use a smaller micro_batch",
			rows, window_tokens, token_bytes, slot_bytes, (uint64_t)LIMIT_CHUNK_BYTES);
	if (slots * rows > LIMIT_RING_ROWS)
		return fault_set(fault, FAULT_ATTACH, "slots",
			"%" PRIu64 " slots × %" PRIu64 " rows = %" PRIu64
			" rows; must be at most %d: " PHRASE_SLOTS,
			slots, rows, slots * rows, LIMIT_RING_ROWS);
	memset(g, 0, sizeof(*g));
	g->slots = (uint32_t)slots;
	g->rows = (uint32_t)rows;
	g->window_tokens = (uint32_t)window_tokens;
	g->token_bytes = (uint32_t)token_bytes;
	g->slot_bytes = slot_bytes;
	g->slot_stride = round_up(slot_bytes, 64);
	g->control_at = round_up(ring_slot_offset(g, slots - 1) + g->slot_stride, RING_PAGE);
	g->data_bytes = g->control_at + RING_PAGE;
	g->documents = (annotations & RING_DOCUMENTS) != 0;
	g->loss_mask = (annotations & RING_LOSS_MASK) != 0;
	g->meta_bytes = RING_PAGE + slots * sizeof(struct ring_slot) +
			slots * rows * sizeof(struct ring_row);
	if (g->documents) /* < 2^22 · 2^31 */
		g->meta_bytes += slots * rows * (1 + window_tokens) * sizeof(uint32_t);
	if (g->loss_mask)
		g->meta_bytes += slots * rows * window_tokens;
	g->meta_bytes = round_up(g->meta_bytes, RING_PAGE);
	ring_geometry_check(g);
	return true;
}

static void ring_place(struct ring *ring, const struct ring_geometry *g, void *meta, void *data)
{
	size_t rows = (size_t)g->slots * g->rows;

	ring->geometry = *g;
	ring->header = meta;
	ring->slot = (struct ring_slot *)((char *)meta + RING_PAGE);
	ring->row = (struct ring_row *)(ring->slot + g->slots);
	void *end = ring->row + rows;

	ring->document_count = g->documents ? end : NULL;
	ring->document_start = g->documents ? ring->document_count + rows : NULL;
	if (g->documents)
		end = ring->document_start + rows * g->window_tokens;
	ring->loss_mask = g->loss_mask ? end : NULL;
	ring->data = data;
	ring->control = (struct ring_control *)((char *)data + g->control_at);
	ring_check(ring);
}

void ring_format(struct ring *ring, const struct ring_geometry *g, void *meta, void *data)
{
	ring_place(ring, g, meta, data);
	ring->header->magic = RING_MAGIC;
	ring->header->version = RING_VERSION;
	ring->header->geometry = *g;
	atomic_store(&ring->header->end, RING_ENDLESS);
}

void ring_say_reason(const struct ring *ring, const char *text)
{
	struct ring_header *h = ring->header;
	uint64_t version = atomic_load_explicit(&h->wait_version, memory_order_relaxed) | 1;
	uint64_t words[RING_REASON_BYTES / 8] = {0};
	size_t n = strlen(text);

	n = n < sizeof(words) ? n : sizeof(words) - 1;
	memcpy(words, text, n);
	atomic_store_explicit(&h->wait_version, version, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	for (size_t i = 0; i <= n / 8; i++)
		atomic_store_explicit(&h->wait_reason[i], words[i], memory_order_relaxed);
	atomic_store_explicit(&h->wait_version, version + 1, memory_order_release);
}

bool ring_reason(const struct ring *ring, char text[RING_REASON_BYTES])
{
	struct ring_header *h = ring->header;
	uint64_t version = atomic_load_explicit(&h->wait_version, memory_order_acquire);
	uint64_t words[RING_REASON_BYTES / 8] = {0};
	bool ends = false;

	for (size_t i = 0; i < RING_REASON_BYTES / 8 && !ends; i++) {
		words[i] = atomic_load_explicit(&h->wait_reason[i], memory_order_relaxed);
		ends = memchr(&words[i], 0, sizeof(words[i])) != NULL;
	}
	atomic_thread_fence(memory_order_acquire);
	if (version % 2 != 0 ||
		atomic_load_explicit(&h->wait_version, memory_order_relaxed) != version)
		return false;
	memcpy(text, words, sizeof(words));
	text[RING_REASON_BYTES - 1] = 0;
	for (char *c = text; *c; c++)
		*c = (unsigned char)*c < ' ' ? '?' : *c;
	return text[0] != 0;
}

static bool not_a_ring(struct fault *fault)
{
	return fault_set(fault, FAULT_PROTOCOL, "ring", "not a ring of version %d; " PHRASE_RELEASE,
		RING_VERSION);
}

bool ring_open(struct ring *ring, void *meta, uint64_t meta_bytes, void *data, uint64_t data_bytes,
	struct fault *fault)
{
	const struct ring_header *header = meta;
	struct ring_geometry g;
	unsigned annotations;

	if (meta_bytes < RING_PAGE || header->magic != RING_MAGIC ||
		header->version != RING_VERSION)
		return not_a_ring(fault);
	annotations = (header->geometry.documents ? RING_DOCUMENTS : 0) |
		      (header->geometry.loss_mask ? RING_LOSS_MASK : 0);
	if (!ring_geometry(&g, header->geometry.slots, header->geometry.rows,
		    header->geometry.window_tokens, header->geometry.token_bytes, annotations,
		    fault))
		return not_a_ring(fault);
	if (memcmp(&g, &header->geometry, sizeof(g)) != 0 || g.meta_bytes != meta_bytes ||
		g.data_bytes != data_bytes)
		return not_a_ring(fault);
	ring_place(ring, &g, meta, data);
	return true;
}
