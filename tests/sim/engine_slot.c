/* The bytes of a slot, and what they should be. */
#include "tests/sim/engine_alone.h"

void engine_fill(const struct dataset *d, uint64_t shard, uint64_t token, uint64_t n, uint8_t *to)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t value = storage_token(d->digest, shard, token + i);

		memcpy(to + i * d->token_bytes, &value, d->token_bytes); /* little-endian */
	}
}

uint64_t engine_slot_hash(const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;

	return order_checksum(ring_slot_data(&c->ring, s), g->slot_bytes) ^
	       order_checksum(ring_rows(&c->ring, s), g->rows * sizeof(struct ring_row)) * 3 ^
	       order_checksum(ring_slot(&c->ring, s), sizeof(struct ring_slot)) * 5;
}

static void check_row(
	const struct client *c, uint64_t position, const struct ring_row *row, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;
	struct order order = cursor_order(&c->cursor);
	uint8_t expected[WINDOW_MAX * 4] = {0};
	struct ring_row right = {.position = RING_PADDING};
	struct order_place p;

	if (order_at(&order, position, &p)) {
		const struct stream_plan *plan = &world_stream[c->stream];
		struct plan_place place = {
			.dataset = p.dataset, .epoch = p.epoch, .window = p.window};

		plan_locate(plan, &plan->source[p.dataset], &c->cursor.order[p.dataset], &place);
		engine_fill(&rig.catalog->stream[c->stream].dataset[p.dataset], place.shard,
			place.offset, g->window_tokens, expected);
		right.position = position;
		right.dataset = place.dataset;
		right.epoch = place.epoch;
		right.window = place.window;
		right.shard = place.shard;
		right.offset = place.offset;
	}
	CHECK(row->position == right.position && row->dataset == right.dataset);
	CHECK(row->epoch == right.epoch && row->window == right.window);
	CHECK(row->shard == right.shard && row->offset == right.offset);
	CHECK(memcmp(bytes, expected, (size_t)g->window_tokens * g->token_bytes) == 0);
}

void engine_check_slot(const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t first = c->cursor.next + (s * c->world + c->rank) * g->rows,
		 end = cursor_end(&c->cursor), left = first < end ? end - first : 0,
		 valid = left < g->rows ? left : g->rows;

	for (uint32_t r = 0; r < g->rows; r++)
		check_row(c, first + r, &ring_rows(&c->ring, s)[r],
			(uint8_t *)ring_slot_data(&c->ring, s) +
				(uint64_t)r * g->window_tokens * g->token_bytes);
	CHECK(ring_slot(&c->ring, s)->rows_valid == valid);
	CHECK(ring_slot(&c->ring, s)->position == first);
}
