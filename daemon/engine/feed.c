#include "daemon/engine/feed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

enum { FEW_SLOTS = 32 };

void feed_check(const struct feed *feed)
{
	const struct ring_geometry *g = &feed->options.ring.geometry;

	assert(feed->released <= feed->published);
	assert(feed->published <= feed->planned);
	assert(feed->planned <= feed->released + g->slots);
	assert(feed->planned <= feed->batches);
	assert(feed->row < g->rows);
	assert(feed->row == 0 || feed->planned < feed->batches);
	assert(feed->reading <= g->slots * g->rows && feed->away <= feed->reading);
	assert(feed->stored || feed->away == 0);
	/* A feed that sleeps has planned whole slots, and waits for a release that can come. */
	assert(feed->wake_at == 0 || feed->row == 0);
	assert(feed->wake_at == 0 || feed->wake_at > feed->released);
	assert(feed->wake_at <= feed->planned && feed->woke_at <= feed->planned);
	assert((feed->list != NULL) == (feed->state == FEED_READY || feed->state == FEED_WAITING));
	assert(feed->state != FEED_HELD || feed->flying > 0);
	assert(feed->flying == (feed->reading - feed->away) * feed->cost);
}

uint64_t feed_batches(const struct cursor *cursor, uint64_t world, uint64_t micro_batch)
{
	uint64_t end = cursor_end(cursor);

	assert(world > 0 && micro_batch > 0);
	assert(cursor->next <= end);
	/* An endless stream ends at the last position, the number of padding. Only sessions that
	 * begin in its second half could ever come there. */
	if (end == UINT64_MAX && cursor->next < UINT64_C(1) << 63)
		return RING_ENDLESS;

	u128 step = (u128)world * micro_batch;

	return (uint64_t)((end - cursor->next + step - 1) / step);
}

struct feed *feed_new(const struct cursor *cursor, const struct feed_options *options)
{
	uint32_t slots = options->ring.geometry.slots;

	assert(options->id < LIMIT_SESSIONS && options->stream < LIMIT_STREAMS);
	assert(options->rank < options->world && options->world <= LIMIT_WORLD);
	assert(options->ring.geometry.window_tokens == cursor->seq_len + cursor->extra);
	ring_check(&options->ring);

	struct feed *feed = calloc(1, sizeof(*feed) + cursor->datasets * sizeof(feed->source[0]));

	if (!feed)
		return NULL;
	feed->options = *options;
	feed->options.source = feed->source;
	memcpy(feed->source, options->source, cursor->datasets * sizeof(feed->source[0]));
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		assert(feed->source[d].place < ENGINE_PLACES);
		feed->stored = feed->stored || feed->source[d].place > 0;
	}
	feed->left = calloc(slots, sizeof(*feed->left));
	if (!feed->left || !cursor_copy(&feed->cursor, cursor)) {
		feed_free(feed);
		return NULL;
	}
	feed->order = cursor_order(&feed->cursor);
	feed->cost = FEED_ROW_COST + (uint64_t)options->ring.geometry.window_tokens *
					     options->ring.geometry.token_bytes;
	feed->batches = feed_batches(cursor, options->world, options->ring.geometry.rows);
	atomic_store(&options->ring.header->end, feed->batches);
	feed_check(feed);
	return feed;
}

void feed_free(struct feed *feed)
{
	if (!feed)
		return;
	assert(feed->reading == 0 && !feed->list);
	cursor_free(&feed->cursor);
	free(feed->left);
	free(feed);
}

uint64_t feed_waits_since(const struct feed *feed)
{
	return ring_waits_since(&feed->options.ring);
}

const struct cursor *feed_cursor(const struct feed *feed)
{
	return &feed->cursor;
}

void feed_say_reason(const struct feed *feed, const char *text)
{
	ring_say_reason(&feed->options.ring, text);
}

struct feed_counters feed_counters(const struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;
	uint64_t published = ring_published(ring);
	uint64_t released = atomic_load_explicit(&ring->control->released, memory_order_relaxed);

	if (released > published) /* the client writes them, so they may be nonsense */
		released = published;
	return (struct feed_counters){
		.published = published,
		.released = released,
		.waits = ring_client_waits(ring, published),
		.full = published - released == ring->geometry.slots,
	};
}

/* ---- sleeping and waking ---- */

/* Should the feed go on? Yes if wake_at is reached, or if a slot is free and the client waits
 * for it. */
static bool feed_wanted(const struct feed *feed, uint64_t released)
{
	const struct ring *ring = &feed->options.ring;

	return released >= feed->wake_at || (feed->planned - released < ring->geometry.slots &&
						    ring_client_waits(ring, feed->planned));
}

/*
 * The feed waits until a part of the ring is free, so that the client makes one system call for
 * many batches: half, or a quarter if it reads from stores, because the rest of the ring hides
 * their latency. A client that has released no slot since its last wake-up is slow. Refills keep
 * its ring nearly full, but a small ring could be empty before the next refill. Then the client is
 * asked for each slot.
 */
static void set_wake_at(struct feed *feed)
{
	const struct ring_geometry *g = &feed->options.ring.geometry;
	bool slow = feed->woke_at > 0 && feed->released <= feed->woke_at;
	uint32_t part = feed->stored ? 4 : 2;

	feed->wake_at = feed->released + (slow && g->slots < FEW_SLOTS ? 1 : ring_part(g, part));
	ring_wake_at(&feed->options.ring, feed->wake_at);
}

static void wake(struct feed *feed)
{
	feed->woke_at = feed->wake_at;
	feed->wake_at = 0;
	ring_wake_at(&feed->options.ring, 0);
}

static enum feed_room feed_sleep(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;

	assert(feed->row == 0 && feed->wake_at == 0);
	assert(feed->planned - feed->released == ring->geometry.slots);
	set_wake_at(feed);
	if (!ring_released(ring, feed->published, &feed->released))
		return FEED_HOSTILE;
	if (!feed_wanted(feed, feed->released)) {
		feed_check(feed);
		return FEED_FULL;
	}
	wake(feed);
	return FEED_ROOM;
}

enum feed_room feed_room(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;

	if (feed->row > 0)
		return FEED_ROOM;
	if (feed->planned == feed->batches)
		return FEED_ENDED;
	if (feed->planned - feed->released < ring->geometry.slots)
		return FEED_ROOM;
	if (!ring_released(ring, feed->published, &feed->released))
		return FEED_HOSTILE;
	if (feed->planned - feed->released < ring->geometry.slots)
		return FEED_ROOM;
	return feed_sleep(feed);
}

bool feed_awake(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;

	if (feed->wake_at == 0)
		return false;
	if (ring_released(ring, feed->published, &feed->released) &&
		!feed_wanted(feed, feed->released))
		return false;
	/* It can go on, or `released` is impossible, which feed_room() will find. */
	wake(feed);
	return true;
}

bool feed_refill(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;
	uint64_t full = feed->planned - ring->geometry.slots;

	if (feed->wake_at == 0)
		return false;
	if (feed_awake(feed))
		return true;
	if (feed->released - full < ring_part(&ring->geometry, 16))
		return false;
	/* Not wake(): the client did not reach wake_at, so this does not show that it is slow. */
	feed->wake_at = 0;
	ring_wake_at(ring, 0);
	return true;
}

/* ---- planning ---- */

/* The destination of ring row @index. */
static void *row_tokens(const struct feed *feed, uint32_t index)
{
	const struct ring_geometry *g = &feed->options.ring.geometry;
	uint8_t *slot = ring_slot_data(&feed->options.ring, index / g->rows);

	assert(index < g->slots * g->rows);
	return slot + (uint64_t)(index % g->rows) * g->window_tokens * g->token_bytes;
}

static void describe_read(const struct feed *feed, uint32_t index, const struct ring_row *row,
	struct engine_action *read)
{
	const struct ring_geometry *g = &feed->options.ring.geometry;

	*read = (struct engine_action){
		.type = ENGINE_READ,
		.id = feed->options.id,
		.stream = feed->options.stream,
		.tag = (uint64_t)feed->options.id << 32 | index,
		.owner = feed->source[row->dataset].owner,
		.shard = row->shard,
		.token = row->offset,
		.tokens = g->window_tokens,
		.to = row_tokens(feed, index),
		.annotations = ring_annotations(&feed->options.ring, index),
	};
}

void feed_read_again(const struct feed *feed, uint32_t index, struct engine_action *read)
{
	describe_read(feed, index, &feed->options.ring.row[index], read);
}

static void begin_slot(struct feed *feed, uint64_t first)
{
	const struct ring_geometry *g = &feed->options.ring.geometry;
	uint64_t end = cursor_end(&feed->cursor);
	uint64_t valid = first < end ? end - first : 0;
	uint32_t at = (uint32_t)(feed->planned % g->slots);

	assert(feed->planned < feed->batches && feed->planned - feed->released < g->slots);
	*ring_slot(&feed->options.ring, feed->planned) = (struct ring_slot){
		.position = first,
		.rows_valid = valid < g->rows ? (uint32_t)valid : g->rows,
	};
	assert(feed->left[at] == 0);
	feed->left[at] = 1;
}

static void locate(const struct feed *feed, uint64_t position, const struct order_place *place,
	struct ring_row *row)
{
	const struct table *table = feed->source[place->dataset].table;
	uint64_t shard, offset;

	assert(table);
	assert(place->window < table->windows);
	table_locate(table, &feed->cursor.order[place->dataset], feed->cursor.seed, place->epoch,
		place->window, &shard, &offset);
	*row = (struct ring_row){
		.position = position,
		.epoch = place->epoch,
		.window = place->window,
		.offset = offset,
		.dataset = place->dataset,
		.shard = (uint32_t)shard,
	};
}

/* Position of the first row of the slot that is planned next. */
static uint64_t next_slot(const struct feed *feed)
{
	return order_rank_position(feed->cursor.next, feed->planned, feed->options.rank,
		feed->options.world, feed->options.ring.geometry.rows);
}

/* The row that is planned next. It is located once, although its place is asked for before. */
static const struct ring_row *next_row(struct feed *feed)
{
	struct order_place place;

	if (feed->located)
		return &feed->next;
	uint64_t end = cursor_end(&feed->cursor), first = next_slot(feed);

	feed->located = true;
	if (first < end && feed->row < end - first &&
		order_at(&feed->order, first + feed->row, &place))
		locate(feed, first + feed->row, &place, &feed->next);
	else
		feed->next = (struct ring_row){.position = RING_PADDING};
	return &feed->next;
}

unsigned feed_place(struct feed *feed)
{
	if (!feed->stored)
		return 0;
	const struct ring_row *row = next_row(feed);

	return row->position == RING_PADDING ? 0 : feed->source[row->dataset].place;
}

unsigned feed_place_of(const struct feed *feed, uint32_t index)
{
	return feed->stored ? feed->source[feed->options.ring.row[index].dataset].place : 0;
}

bool feed_plan(struct feed *feed, struct engine_action *read)
{
	const struct ring *ring = &feed->options.ring;
	const struct ring_geometry *g = &ring->geometry;
	uint32_t at = (uint32_t)(feed->planned % g->slots), r = feed->row;
	uint32_t index = at * g->rows + r;
	struct ring_row row = *next_row(feed);
	bool real = row.position != RING_PADDING;

	assert(feed->state == FEED_READY || feed->state == FEED_IDLE); /* without an engine */
	assert(r < g->rows);
	if (r == 0)
		begin_slot(feed, next_slot(feed));
	ring_rows(ring, feed->planned)[r] = row;
	describe_read(feed, index, &row, read);
	if (real) {
		feed->left[at]++;
		feed->reading++;
		if (feed->source[row.dataset].place > 0)
			feed->away++;
		else
			feed->flying += feed->cost;
	} else {
		memset(read->to, 0, (size_t)g->window_tokens * g->token_bytes);
		if (read->annotations.count)
			*read->annotations.count = 0;
		if (read->annotations.loss_mask)
			memset(read->annotations.loss_mask, 0, g->window_tokens);
	}
	feed->located = false;
	if (++feed->row == g->rows) {
		feed->row = 0;
		feed->planned++;
		feed->left[at]--;
	}
	return real;
}

void feed_read_ended(struct feed *feed, uint32_t index)
{
	assert(feed->reading > 0);
	feed->reading--;
	if (feed_place_of(feed, index) > 0) {
		assert(feed->away > 0);
		feed->away--;
	} else {
		assert(feed->flying >= feed->cost);
		feed->flying -= feed->cost;
	}
}

bool feed_publish(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;
	uint64_t before = feed->published, waits;

	while (feed->published < feed->planned &&
		feed->left[feed->published % ring->geometry.slots] == 0)
		feed->published++;
	if (feed->published == before)
		return false;
	waits = ring_publish(ring, feed->published);
	if (waits == 0 || waits == feed->woken)
		return false;
	feed->woken = waits;
	return true;
}
