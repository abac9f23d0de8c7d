#include "daemon/engine/next_use.h"

#include <assert.h>

/* The segment that contains @position, or the first one. */
static const struct order_segment *segment_at(const struct order *order, uint64_t position)
{
	uint32_t i = order->segments - 1;

	while (i > 0 && order->segment[i]->start > position)
		i--;
	return order->segment[i];
}

/* The samples of @dataset before the block of 1024 that contains @position. */
static uint64_t served_before(const struct order *order, uint32_t dataset, uint64_t position)
{
	const struct order_segment *s = segment_at(order, position);
	uint64_t block = position / LIMIT_BLOCK * LIMIT_BLOCK, at, j;

	if (dataset >= s->datasets)
		return 0;
	at = block > s->start ? block - s->start : 0;

	uint64_t lo = s->base[dataset], hi = s->base[dataset];

	if (s->units[dataset] > 0)
		hi = hi + at < hi ? UINT64_MAX : hi + at;
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (order_join(s, dataset, mid, &j) && j < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The least position in one epoch. */
static uint64_t least(const struct order *order, struct order_place place, uint64_t from,
	uint64_t first, uint64_t count, uint64_t most)
{
	uint64_t best = UINT64_MAX, looks = count < most ? count : most, position;

	for (uint64_t i = 0; i < looks; i++) {
		place.window = first + (uint64_t)((unsigned __int128)count * i / looks) +
			       count / looks / 2;
		if (order_when(order, &place, &position) && position >= from && position < best)
			best = position;
	}
	return best;
}

/* Whether the epoch begins in this block of 1024 or before: positions in a block are in any order,
 * so that it may be needed in the next epoch first. */
static bool begins_by(const struct order *order, struct order_place place, uint64_t block)
{
	uint64_t position;

	place.window = order_window(&order->dataset[place.dataset], order->seed, place.epoch, 0);
	return order_when(order, &place, &position) && position / LIMIT_BLOCK <= block;
}

uint64_t next_use(const struct order *order, uint32_t dataset, const struct table *table,
	uint64_t from, uint64_t shard, uint64_t token, uint64_t tokens, uint64_t most)
{
	const struct order_dataset *d = &order->dataset[dataset];
	struct order_place place = {.dataset = dataset};
	uint64_t best = UINT64_MAX, begin;

	assert(dataset < order->datasets && shard < table->shards && most > 0);
	if (d->windows == 0)
		return best;
	begin = served_before(order, dataset, from) / d->windows;
	for (uint64_t e = 0; e < 3 + 2 * LIMIT_BLOCK / d->windows; e++) {
		uint64_t first, count, position;

		place.epoch = begin + e;
		if (best != UINT64_MAX && !begins_by(order, place, best / LIMIT_BLOCK))
			break;
		table_touching(
			table, d, order->seed, place.epoch, shard, token, tokens, &first, &count);
		position = least(order, place, from, first, count, most);
		if (position < best)
			best = position;
	}
	return best;
}
