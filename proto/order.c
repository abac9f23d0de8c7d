#include "proto/order.h"

#include "proto/order_private.h"

#include <assert.h>
#include <string.h>

/* ---- hashing ---- */

uint64_t order_name_hash(const char *name, size_t n)
{
	assert(name || n == 0);
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001B3);
	return h;
}

uint64_t order_checksum(const void *bytes, size_t n)
{
	assert(bytes || n == 0);
	const unsigned char *p = bytes;
	uint64_t h = order_mix64(n + ORDER_GOLDEN);

	for (; n > 0; p += 8) {
		size_t take = n < 8 ? n : 8;
		uint64_t word = 0;

		for (size_t i = 0; i < take; i++)
			word |= (uint64_t)p[i] << 8 * i;
		h = order_mix64((h ^ word) + ORDER_GOLDEN);
		n -= take;
	}
	return h;
}

uint64_t order_digest_begin(uint64_t shards)
{
	return order_derive(0, shards);
}

uint64_t order_digest_add(uint64_t digest, const char *path, uint64_t tokens)
{
	assert(path && *path);
	return order_derive(digest, order_name_hash(path, strlen(path)), tokens);
}

/* ---- the whole function ---- */

void order_check(const struct order *order)
{
	assert(order->datasets > 0 && order->datasets <= LIMIT_DATASETS);
	assert(order->segments > 0);
	assert(order->dataset && order->segment);
	assert(!order->exact_end || order->end > 0);
	for (uint32_t i = 0; i < order->segments; i++) {
		const struct order_segment *s = order->segment[i];

		assert(s->datasets <= order->datasets);
		assert(i == 0 || s->start > order->segment[i - 1]->start);
		assert(i == 0 || s->datasets >= order->segment[i - 1]->datasets);
	}
}

/* Size of block @m. An exact end cuts the last block short. */
static uint64_t block_size(const struct order *order, uint64_t m)
{
	uint64_t left = order->end - m * LIMIT_BLOCK;

	assert(!order->exact_end || left > 0);
	return order->exact_end && left < LIMIT_BLOCK ? left : LIMIT_BLOCK;
}

static uint64_t block_key(const struct order *order, uint64_t m)
{
	return order_derive(order->seed, ORDER_KEY_MIX, m);
}

/* The last segment that begins at @position or before; NULL: there is none. */
static const struct order_segment *segment_at(const struct order *order, uint64_t position)
{
	uint32_t lo = 0, hi = order->segments;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (order->segment[mid]->start <= position)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 ? order->segment[lo - 1] : NULL;
}

bool order_at(const struct order *order, uint64_t position, struct order_place *place)
{
	const struct order_segment *s = segment_at(order, position);
	uint64_t m = position / LIMIT_BLOCK, j = position, ordinal;

	if (!s || (order->end && position >= order->end))
		return false;
	if (s->mixed > 1)
		j = m * LIMIT_BLOCK +
		    order_permute(block_size(order, m), block_key(order, m), j % LIMIT_BLOCK);
	order_split(s, j - s->start, &place->dataset, &ordinal);

	const struct order_dataset *d = &order->dataset[place->dataset];

	assert(place->dataset < order->datasets && d->windows > 0);
	place->epoch = ordinal / d->windows;
	place->window = order_window(d, order->seed, place->epoch, ordinal % d->windows);
	return true;
}

bool order_when(const struct order *order, const struct order_place *place, uint64_t *position)
{
	if (place->dataset >= order->datasets)
		return false;
	const struct order_dataset *d = &order->dataset[place->dataset];
	uint64_t x = order_unwindow(d, order->seed, place->epoch, place->window);
	u128 wide = (u128)place->epoch * d->windows + x;

	if (x == UINT64_MAX || wide > UINT64_MAX)
		return false;

	/* The last segment that had not yet served this ordinal when it started. */
	uint64_t ordinal = (uint64_t)wide, j;
	uint32_t i = order->segments;

	while (i > 0 && (place->dataset >= order->segment[i - 1]->datasets ||
				order->segment[i - 1]->base[place->dataset] > ordinal))
		i--;
	if (i == 0)
		return false;

	const struct order_segment *s = order->segment[i - 1];

	assert(place->dataset < s->datasets && s->base[place->dataset] <= ordinal);
	if (!order_join(s, place->dataset, ordinal, &j) || j > UINT64_MAX - s->start)
		return false;
	j += s->start;
	if (i < order->segments && j >= order->segment[i]->start)
		return false;
	/* Past an exact end nothing is scrambled. Past any other end, scrambling may still bring it
	 * before the end.
	 */
	if (order->exact_end && j >= order->end)
		return false;
	if (s->mixed > 1) {
		uint64_t m = j / LIMIT_BLOCK;

		j = m * LIMIT_BLOCK +
		    order_unpermute(block_size(order, m), block_key(order, m), j % LIMIT_BLOCK);
	}
	if (order->end && j >= order->end)
		return false;
	*position = j;
	return true;
}

/* ---- ranks ---- */

uint64_t order_rank_position(
	uint64_t next, uint64_t m, uint64_t rank, uint64_t world, uint64_t micro_batch)
{
	u128 batch;

	/* m·world + rank < 2^96 and × micro_batch < 2^113: no step of this overflows 128 bits. */
	assert(world <= LIMIT_WORLD && rank < world && micro_batch <= LIMIT_MICRO_BATCH);
	batch = (u128)m * world + rank;
	batch = batch * micro_batch + next;
	return batch > UINT64_MAX ? UINT64_MAX : (uint64_t)batch;
}
