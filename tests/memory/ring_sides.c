/*
 * The product's two sides of a ring: the engine with its feed, and the library's tokend_next() and
 * tokend_release(). Only what is around them is replaced: the socket is a channel, no wait has
 * a timeout, and reads of shards are plain writes.
 */
#include "tests/memory/ring_sides.h"

#include "client/lib/handle.h"

#include "daemon/engine/feed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 5, ROWS = 2, SPIN_NS = 20000, BATCHES_MOST = 16, READS_MOST = 64 };

/* One dataset of a hundred windows in one shard. A window has 4 tokens and one extra. */
static uint64_t shard_tokens[] = {401}, first_window[2];
static struct table table = {.window_tokens = WINDOW,
	.stride = 4,
	.shards = 1,
	.tokens = shard_tokens,
	.first_window = first_window};
static const struct feed_source source = {.table = &table, .owner = &table};

struct session {
	struct feed *feed;
	struct ring ring;
	void *meta, *data;
};

static struct state {
	uint64_t slots, samples;
	struct session session;
	struct engine *engine;
	struct engine_actions out;
	struct engine_action read[READS_MOST];
	unsigned reads;
	uint64_t to_daemon, to_client; /* the socket */
	uint64_t mail;		       /* from the control thread to the data thread */
	struct tokend client;
	struct mapping *mapping;
	struct tokend_batch batch[BATCHES_MOST];
	uint64_t batches, hold, taken;
	uint64_t clock;
	volatile uint64_t alive;
} * s;

/* ---- what the library calls ---- */

int64_t wait_now(void)
{
	return (int64_t)(s->clock += SPIN_NS);
}

int wait_ready(struct tokend *t, int fd, short events, int64_t until)
{
	(void)t, (void)fd, (void)events, (void)until;
	channel_wait(&s->to_client);
	return 1;
}

int query_listen(struct tokend *t)
{
	(void)t;
	return 0; /* wait_ready() has received the byte */
}

void link_wake(int fd)
{
	(void)fd;
	channel_send(&s->to_daemon);
}

int position_check(struct tokend *t)
{
	(void)t;
	return 0;
}

int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...)
{
	(void)t, (void)format;
	explorer_fail("the library failed: %d %s", error, field);
	return error;
}

void slow_begin(const struct tokend *t, struct waiting *w)
{
	(void)t, (void)w;
}

int slow_look(struct tokend *t, struct waiting *w)
{
	(void)t, (void)w;
	return 0;
}

int64_t slow_end(const struct tokend *t, const struct waiting *w)
{
	(void)t, (void)w;
	return INT64_MAX;
}

int slow_over(struct tokend *t, struct waiting *w)
{
	(void)t, (void)w;
	return 0;
}

/* Not reached. */
#define UNUSED(result, name, ...)                                                                  \
	result name(__VA_ARGS__)                                                                   \
	{                                                                                          \
		explorer_fail(#name);                                                              \
		return (result)0;                                                                  \
	}
#define UNUSED_VOID(name, ...)                                                                     \
	void name(__VA_ARGS__)                                                                     \
	{                                                                                          \
		explorer_fail(#name);                                                              \
	}
#pragma GCC diagnostic ignored "-Wunused-parameter"
UNUSED(int, handle_failed, struct tokend *t)
UNUSED(int, handle_latch, struct tokend *t, int error)
UNUSED(int, recording_rows, struct tokend *t, const struct tokend_row *row, uint32_t rows,
	const void *tokens, size_t bytes, uint64_t next)
UNUSED(int, revive, struct tokend *t, bool wait)
UNUSED_VOID(undo_forget, struct tokend *t)
UNUSED_VOID(search_end, struct search *search)

/* ---- making ---- */

static void make_client(void)
{
	struct fault fault;
	struct ring_geometry *g = &s->session.ring.geometry;
	struct mapping *m = world_alloc(sizeof(*m) + sizeof(m->bits[0]), 64);

	assert(ring_open(
		&m->ring, s->session.meta, g->meta_bytes, s->session.data, g->data_bytes, &fault));
	m->queue = (struct release_queue){.slots = g->slots, .bits = m->bits};
	s->alive = 1;
	s->mapping = m;
	s->client = (struct tokend){
		.alive = &s->alive,
		.mapping = m,
		.end = s->samples,
		.step = ROWS,
		.world = 1,
		.micro_batch = ROWS,
		.fd = 7,
	};
}

/* The rows' memory and the control words, but not the words themselves. */
static void share(void)
{
	struct ring *ring = &s->session.ring;
	struct ring_geometry *g = &ring->geometry;

	explorer_shared(ring->data, g->control_at, "tokens");
	explorer_shared(ring->slot, g->meta_bytes - RING_PAGE, "rows");
	explorer_name(&ring->header->published, "published");
	explorer_name(&ring->header->end, "end");
	explorer_name(&ring->header->wake_at, "wake_at");
	explorer_name(&ring->control->released, "released");
	explorer_name(&ring->control->client_waits, "client_waits");
	explorer_name(&s->to_daemon, "byte to the daemon");
	explorer_name(&s->to_client, "byte to the client");
	explorer_name(&s->mail, "kick");
}

static void step_engine(struct engine_event event)
{
	engine_step(s->engine, &event, &s->out);
	for (unsigned i = 0; i < s->out.count; i++)
		switch (s->out.action[i].type) {
		case ENGINE_READ:
			assert(s->reads < READS_MOST);
			s->read[s->reads++] = s->out.action[i];
			break;
		case ENGINE_WAKE:
			channel_send(&s->to_client);
			if (feed_waits_since(s->out.action[i].feed) == 0)
				explorer_fail("the wait that is over has no beginning");
			break;
		default:
			explorer_fail("the engine's action %d", s->out.action[i].type);
		}
}

static uint32_t token_of(uint64_t position, unsigned i)
{
	return (uint32_t)(position * 16 + i + 1);
}

/* The tokens of a read: those that the client expects at the row's position. */
static void fill(const struct engine_action *read)
{
	uint32_t *to = read->to;
	const struct ring_row *row = &s->session.ring.row[(uint32_t)read->tag];

	for (unsigned i = 0; i < WINDOW; i++)
		to[i] = token_of(row->position, i);
}

/* One event of the daemon's: a read that is done, or more to plan. False: there is none. */
static bool go_on(void)
{
	if (s->reads > 0) {
		struct engine_action read = s->read[0];

		memmove(s->read, s->read + 1, --s->reads * sizeof(read));
		fill(&read);
		step_engine((struct engine_event){.type = ENGINE_DONE, .tag = read.tag});
		return true;
	}
	if (!s->out.more)
		return false;
	step_engine((struct engine_event){.type = ENGINE_PUMP});
	return true;
}

static struct session session_make(uint32_t slots, uint64_t samples)
{
	struct cursor_source sources[] = {{"d", 1, 100, 1, 64, 64, ORDER_NONE, false, 0, 0, 0}};
	struct cursor id = {.stream = "s",
			      .seed = 1,
			      .seq_len = 4,
			      .extra = 1,
			      .stride = 4,
			      .samples = samples},
		      cursor;
	struct session made = {0};
	struct ring_geometry g;
	struct fault fault;

	table_number(&table);
	assert(table.windows == 100);
	if (!cursor_begin(&cursor, &id, sources, 1, NULL, 0, &fault) ||
		!ring_geometry(&g, slots, ROWS, WINDOW, 4, 0, &fault))
		abort();
	made.meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	made.data = aligned_alloc(RING_PAGE, g.data_bytes);
	assert(made.meta && made.data);
	memset(made.meta, 0, g.meta_bytes);
	memset(made.data, 0, g.data_bytes);
	ring_format(&made.ring, &g, made.meta, made.data);
	made.feed = feed_new(
		&cursor, &(struct feed_options){.world = 1, .ring = made.ring, .source = &source});
	assert(made.feed);
	cursor_free(&cursor);
	return made;
}

void ring_setup(uint32_t slots, uint64_t batches, uint64_t hold, uint64_t taken, unsigned depth)
{
	assert(batches <= BATCHES_MOST && taken <= hold && taken <= slots);
	s = world_alloc(sizeof(*s), 64);
	s->batches = batches;
	s->hold = hold;
	s->slots = slots;
	s->samples = batches * ROWS;
	s->session = session_make(slots, s->samples);
	s->engine = engine_new(depth, 1);
	make_client();
	share();
	step_engine((struct engine_event){.type = ENGINE_ATTACH, .feed = s->session.feed});
	while (s->session.feed->published < taken)
		go_on();
	for (; s->taken < taken; s->taken++)
		assert(tokend_next(&s->client, &s->batch[s->taken]) == 1);
}

/* ---- the daemon ---- */

/* @refills: before each wait, slots that are free before the client was to tell. */
static void serve(bool refills)
{
	const struct feed *feed = s->session.feed;

	for (;;) {
		while (go_on())
			;
		if (feed->published == feed->batches)
			return;
		if (refills)
			step_engine((struct engine_event){.type = ENGINE_REFILL});
		if (s->reads > 0)
			continue;
		channel_wait(&s->mail);
		step_engine((struct engine_event){.type = ENGINE_KICK});
	}
}

void ring_data(void)
{
	serve(false);
}

void ring_looking_data(void)
{
	serve(true);
}

/* As wake() in daemon/control/connection.c. */
void ring_control(void)
{
	for (;;) {
		channel_wait(&s->to_daemon);
		if (ring_wanted(&s->session.ring))
			channel_send(&s->mail);
	}
}

/* ---- the client ---- */

static void check(const struct tokend_batch *batch, uint64_t n)
{
	const uint32_t *tokens = batch->tokens;

	if (batch->position != n * ROWS || batch->rows_valid != ROWS)
		explorer_fail(
			"batch %lu: position %lu, %u rows", n, batch->position, batch->rows_valid);
	for (unsigned row = 0; row < ROWS; row++) {
		if (batch->row[row].position != n * ROWS + row)
			explorer_fail("batch %lu: row %u has position %lu", n, row,
				batch->row[row].position);
		for (unsigned i = 0; i < WINDOW; i++)
			if (tokens[row * WINDOW + i] != token_of(n * ROWS + row, i))
				explorer_fail("batch %lu: row %u, token %u is %u", n, row, i,
					tokens[row * WINDOW + i]);
	}
}

/* Keeps `hold` batches at most. @take: tokend_next(), or polls. */
static void consume(int (*take)(struct tokend *, struct tokend_batch *))
{
	struct tokend_batch none;

	for (uint64_t n = s->taken; n < s->batches; n++) {
		if (n >= s->hold)
			tokend_release(&s->client, &s->batch[n - s->hold]);
		if (take(&s->client, &s->batch[n]) != 1)
			explorer_fail("batch %lu: none", n);
		check(&s->batch[n], n);
	}
	for (uint64_t n = s->batches < s->hold ? 0 : s->batches - s->hold; n < s->batches; n++)
		tokend_release(&s->client, &s->batch[n]);
	if (take(&s->client, &none) != 0)
		explorer_fail("a batch after the end");
}

/* A trainer that polls looks again after a while: any later store may be seen then. */
static int poll_next(struct tokend *t, struct tokend_batch *batch)
{
	int r;

	while ((r = tokend_try_next(t, batch)) == TOKEND_EAGAIN)
		explorer_await(&t->mapping->ring.header->published, t->mapping->queue.taken + 1);
	return r;
}

void ring_client(void)
{
	consume(tokend_next);
}

/* A trainer that releases its batches and computes for a long time. */
void ring_computing_client(void)
{
	for (uint64_t n = 0; n < s->taken; n++)
		tokend_release(&s->client, &s->batch[n]);
}

void ring_polling_client(void)
{
	consume(poll_next);
}

/* ---- what the daemon waits for ---- */

#define REASON	"aaaaaaaaa" /* two words */
#define ANOTHER "bbbbbbbbb"

void ring_reason_setup(void)
{
	ring_setup(1, 1, 1, 0, 64);
	ring_say_reason(&s->session.ring, REASON);
}

void ring_saying(void)
{
	ring_say_reason(&s->session.ring, ANOTHER);
}

void ring_asking(void)
{
	char text[RING_REASON_BYTES];

	if (ring_reason(&s->mapping->ring, text) && strcmp(text, REASON) != 0 &&
		strcmp(text, ANOTHER) != 0)
		explorer_fail("a torn reason: %s", text);
}

/* ---- status and metrics ---- */

void ring_status(void)
{
	struct feed_counters c = feed_counters(s->session.feed);

	if (c.released > c.published || c.published - c.released > s->slots)
		explorer_fail("status: published %lu, released %lu", c.published, c.released);
}
