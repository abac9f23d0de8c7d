/*
 * When sessions need pieces of objects, by their orders and positions, for the cache of stores.
 * What it calls runs in threads of the store, between following_begin() and following_end().
 *
 * Tokens of compressed shards are assumed to be spread evenly over their bytes, which is good
 * enough for a choice.
 */
#include "daemon/control/control.h"

#include "daemon/engine/next_use.h"
#include "daemon/store/store.h"

#include <string.h>

enum {
	SAMPLE = 4,	      /* windows of a piece that are looked up */
	AHEAD_TIMES = 4,      /* what was read */
	AHEAD_MOST = 1 << 20, /* samples */
	EVICTS_TIMES = 256,
};

/* The shard that @url is. False: it is none of the dataset, or was another version. */
static bool find_shard(const struct dataset *d, const char *url, const char *etag, uint64_t *shard)
{
	size_t n = d ? strlen(d->root) : 0;
	struct object object;

	if (!d || !d->objects || strncmp(url, d->root, n) != 0 || url[n] != '/')
		return false;
	int64_t found = dataset_find_shard(d, url + n + 1);

	if (found < 0)
		return false;
	*shard = (uint64_t)found;
	dataset_object(d, *shard, &object);
	return strcmp(object.etag ? object.etag : "", etag) == 0;
}

/* Bytes a token in the shard, and where its tokens begin. */
static double each_token(const struct dataset *d, uint64_t shard, uint64_t *data_at)
{
	bool plain = dataset_is_plain(d, shard);

	*data_at = plain ? dataset_data_at(d, shard) : 0;
	return plain ? d->token_bytes : (double)d->sizes[shard] / (double)d->table.tokens[shard];
}

/* If all ranks have come as far as the session. */
static uint64_t reached_by(const void *context)
{
	const struct session *s = context;

	return order_rank_position(feed_cursor(s->feed)->next, feed_counters(s->feed).published, 0,
		s->world, s->micro_batch);
}

/* The least position of the session's run from @from on that needs [at, at + n) of the shard. */
static uint64_t next_use_of(const void *context, uint64_t from, const char *url, const char *etag,
	uint64_t at, uint64_t n, bool exact)
{
	const struct session *s = context;
	const struct cursor *cursor = feed_cursor(s->feed);
	struct order order = cursor_order(cursor);
	const struct dataset *dataset[LIMIT_DATASETS];
	uint64_t least = UINT64_MAX;

	stream_map(s->stream, cursor, dataset);
	for (uint32_t i = 0; i < cursor->datasets; i++) {
		const struct dataset *d = dataset[i];
		uint64_t shard, data_at, use;

		if (!find_shard(d, url, etag, &shard) || d->sizes[shard] == 0)
			continue;

		double each = each_token(d, shard, &data_at);
		uint64_t token = at > data_at ? (uint64_t)((double)(at - data_at) / each) : 0;
		uint64_t tokens = (uint64_t)((double)n / each) + !dataset_is_plain(d, shard);

		use = next_use(&order, i, &d->table, from, shard, token, tokens,
			exact ? UINT64_MAX : SAMPLE);
		least = use < least ? use : least;
	}
	return least;
}

/* The part of an object that a window needs; ->n is 0 if there is none. */
static void need_of(const struct session *s, const struct order *order,
	const struct order_place *place, struct store_need *need)
{
	const struct dataset *dataset[LIMIT_DATASETS], *d;
	uint64_t shard, token, data_at;
	double each;

	stream_map(s->stream, feed_cursor(s->feed), dataset);
	d = dataset[place->dataset];
	need->n = need->object.piece = 0;
	if (!d || d->piece == 0)
		return;
	table_locate(&d->table, &order->dataset[place->dataset], order->seed, place->epoch,
		place->window, &shard, &token);
	dataset_object(d, shard, &need->object);
	each = each_token(d, shard, &data_at);
	need->at = data_at + (uint64_t)((double)token * each);
	need->n = (uint64_t)((double)d->table.window_tokens * each) + !dataset_is_plain(d, shard);
	if (need->at >= d->sizes[shard])
		need->n = 0;
	else if (need->n > d->sizes[shard] - need->at)
		need->n = d->sizes[shard] - need->at;
}

/* Of one sample of this session. */
static uint64_t position_of(const struct session *s, uint64_t sample)
{
	return order_rank_position(feed_cursor(s->feed)->next, sample / s->micro_batch, s->rank,
		       s->world, s->micro_batch) +
	       sample % s->micro_batch;
}

/*
 * A session looks ahead in proportion to what it has read, so that one that ends soon fetches
 * little. For a sample at a distance, only pieces are evicted that are needed at many times that
 * distance. Otherwise pieces that could stay until the next epoch would make room for those that
 * can be fetched later as well, and more would be fetched in all.
 */
static bool ahead_of(const void *context, uint64_t *sample, struct store_need *need)
{
	const struct session *s = context;
	struct order order = cursor_order(feed_cursor(s->feed));
	struct feed_counters counters = feed_counters(s->feed);
	uint64_t from = counters.published * s->micro_batch, far = AHEAD_MOST, now, position;
	struct order_place place;

	if (counters.released < AHEAD_MOST / AHEAD_TIMES / s->micro_batch)
		far = counters.released * s->micro_batch * AHEAD_TIMES;
	if (*sample < from)
		*sample = from;
	now = position_of(s, from);
	position = position_of(s, *sample);
	if (*sample - from >= far || position < now || !order_at(&order, position, &place))
		return false;
	need_of(s, &order, &place, need);
	need->evicts_after = UINT64_MAX - 1;
	if (position - now < (UINT64_MAX - 1 - now) / EVICTS_TIMES)
		need->evicts_after = now + (position - now) * EVICTS_TIMES;
	return true;
}

void following_begin(struct session *s)
{
	struct stores *stores = s->control->options->stores;
	struct store_follower follower = {
		.context = s,
		.order = cursor_fingerprint(feed_cursor(s->feed), s->world, s->micro_batch) ^
			 (uintptr_t)s->stream,
		.reached = reached_by,
		.next_use = next_use_of,
	};

	for (uint32_t i = 0; i < s->stream->config->datasets; i++)
		if (s->stream->dataset[i].piece > 0)
			follower.ahead = ahead_of;
	if (stores)
		store_follow(stores, s->id, &follower);
}

void following_end(struct session *s)
{
	if (s->control->options->stores)
		store_follow(s->control->options->stores, s->id, NULL);
}
