/* A client of the simulated daemon: its feed and memory, and the check of each slot it takes. */
#include "tests/sim/engine_sim.h"

#include <string.h>
#include <sys/mman.h>

static void *map(struct sim *sim, uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(sim, at != MAP_FAILED);
	return at;
}

/* Makes the memory inaccessible. The oldest grave is unmapped. */
static void bury(struct sim *sim, void *at, uint64_t bytes)
{
	struct grave *g = &sim->grave[sim->graves++ % GRAVES];

	if (g->at)
		munmap(g->at, g->bytes);
	*g = (struct grave){at, bytes};
	CHECK(sim, mprotect(at, bytes, PROT_NONE) == 0);
}

static uint64_t batches_to_come(const struct client *c)
{
	uint64_t end = cursor_end(&c->cursor), step = c->world * c->ring.geometry.rows;

	return end == UINT64_MAX ? RING_ENDLESS : (end - c->cursor.next + step - 1) / step;
}

void client_make(struct sim *sim, struct client *c)
{
	const struct stream *s = &sim->stream[below(sim, STREAMS)];
	uint64_t rows = 1 + below(sim, ROWS_MAX), slots = 1 + below(sim, SLOTS_MAX);
	struct ring_geometry g;
	struct fault fault;

	*c = (struct client){.state = RUNNING, .stream = s, .cursor = stream_cursor(sim, s)};
	c->world = 1 + below(sim, 5);
	c->rank = below(sim, c->world);
	c->user = (uint32_t)below(sim, USERS);
	c->run = USERS + c->user * RUNS + (uint32_t)below(sim, RUNS);
	CHECK(sim, ring_geometry(&g, slots, rows, s->begin.seq_len + s->begin.extra, s->token_bytes,
			   s->annotations, &fault));
	c->meta = map(sim, g.meta_bytes);
	c->data = map(sim, g.data_bytes);
	ring_format(&c->ring, &g, c->meta, c->data);
	c->end = batches_to_come(c);
	c->feed = feed_new(&c->cursor, &(struct feed_options){
					       .id = id_of(sim, c),
					       .stream = (uint32_t)(s - sim->stream),
					       .user = c->user,
					       .run = c->run,
					       .rank = c->rank,
					       .world = c->world,
					       .ring = c->ring,
					       .source = s->source,
				       });
	CHECK(sim, c->feed);
	CHECK(sim, atomic_load(&c->ring.header->end) == c->end);
}

void client_bury(struct sim *sim, struct client *c)
{
	uint64_t meta_bytes = c->ring.geometry.meta_bytes, data_bytes = c->ring.geometry.data_bytes;

	for (unsigned i = 0; i < SLOTS_MAX * ROWS_MAX; i++)
		CHECK(sim, !c->reading[i]);
	feed_free(c->feed);
	cursor_free(&c->cursor);
	bury(sim, c->meta, meta_bytes);
	bury(sim, c->data, data_bytes);
	c->state = ABSENT;
}

uint64_t client_slot_hash(const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;

	uint32_t index = (uint32_t)(s % g->slots) * g->rows;
	uint64_t hash = 0;

	for (uint32_t i = index; g->documents && i < index + g->rows; i++)
		hash = hash * 31 + order_checksum(ring_document_start(&c->ring, i),
					   *ring_document_count(&c->ring, i) * sizeof(uint32_t));
	if (g->loss_mask)
		hash += order_checksum(
			ring_loss_mask(&c->ring, index), (size_t)g->rows * g->window_tokens);
	return hash ^ order_checksum(ring_slot_data(&c->ring, s), g->slot_bytes) ^
	       order_checksum(ring_rows(&c->ring, s), g->rows * sizeof(struct ring_row)) * 3 ^
	       order_checksum(ring_slot(&c->ring, s), sizeof(struct ring_slot)) * 5;
}

static bool all_zero(const uint8_t *bytes, uint64_t n)
{
	while (n > 0 && bytes[n - 1] == 0)
		n--;
	return n == 0;
}

static void check_padding(
	struct sim *sim, const struct ring_row *row, const uint8_t *bytes, uint64_t n)
{
	CHECK(sim, row->position == RING_PADDING);
	CHECK(sim, row->epoch == 0 && row->window == 0 && row->offset == 0 && row->dataset == 0 &&
			   row->shard == 0);
	CHECK(sim, all_zero(bytes, n));
	sim->counts.padding++;
}

static void check_row(struct sim *sim, const struct client *c, uint64_t position,
	const struct ring_row *row, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;
	struct order order = cursor_order(&c->cursor);
	struct order_place p;
	uint8_t expected[WINDOW_MAX * 4];
	uint64_t shard, offset;

	CHECK(sim, order_at(&order, position, &p));
	const struct dataset *d = &c->stream->dataset[p.dataset];

	stream_locate(d, &c->cursor.order[p.dataset], c->cursor.seed, &p, &shard, &offset);
	CHECK(sim, row->position == position);
	CHECK(sim, row->dataset == p.dataset && row->epoch == p.epoch && row->window == p.window);
	CHECK(sim, row->shard == shard && row->offset == offset);
	stream_tokens(d, shard, offset, g->window_tokens, g->token_bytes, expected);
	CHECK(sim, memcmp(bytes, expected, (size_t)g->window_tokens * g->token_bytes) == 0);
	sim->counts.rows++;
}

/* Checks the documents of ring row @index, whose tokens are @bytes (zeros in padding). */
static void check_documents(
	struct sim *sim, const struct client *c, uint32_t index, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint32_t n = 0, token;

	if (!g->documents)
		return;
	for (uint32_t i = 1; i < g->window_tokens; i++) {
		token = 0;
		memcpy(&token, bytes + (size_t)(i - 1) * g->token_bytes, g->token_bytes);
		if (token == EOS)
			CHECK(sim, ring_document_start(&c->ring, index)[n++] == i);
	}
	CHECK(sim, *ring_document_count(&c->ring, index) == n);
	sim->counts.documents += n;
}

/* Padding has tokens 0, so it has no labels. */
static void check_loss_mask(
	struct sim *sim, const struct client *c, uint32_t index, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;

	for (uint32_t i = 0; g->loss_mask && i < g->window_tokens; i++) {
		CHECK(sim, ring_loss_mask(&c->ring, index)[i] == (bytes[i * g->token_bytes] & 1));
		sim->counts.labels += ring_loss_mask(&c->ring, index)[i];
	}
}

void client_check_slot(struct sim *sim, const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t first = c->cursor.next + (s * c->world + c->rank) * g->rows,
		 end = cursor_end(&c->cursor), valid = 0;
	uint64_t row_bytes = (uint64_t)g->window_tokens * g->token_bytes;

	for (uint32_t r = 0; r < g->rows; r++) {
		const uint8_t *bytes = (uint8_t *)ring_slot_data(&c->ring, s) + r * row_bytes;

		if (first + r < end)
			check_row(sim, c, first + r, &ring_rows(&c->ring, s)[r], bytes);
		else
			check_padding(sim, &ring_rows(&c->ring, s)[r], bytes, row_bytes);
		check_documents(sim, c, (uint32_t)(s % g->slots) * g->rows + r, bytes);
		check_loss_mask(sim, c, (uint32_t)(s % g->slots) * g->rows + r, bytes);
		valid += first + r < end;
	}
	CHECK(sim, ring_slot(&c->ring, s)->rows_valid == valid);
	CHECK(sim, ring_slot(&c->ring, s)->position == first);
}
