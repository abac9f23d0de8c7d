/*
 * A libFuzzer target: the words and slots of rings, as the daemon sees them. Between the steps of
 * an engine with up to four feeds, the input writes to the clients' memory: `released`,
 * `client_waits` and every slot.
 *
 * A feed whose client writes an impossible `released` is reported as hostile, or is unharmed. The
 * others get exactly the rows that they should, whatever is in anybody's slots.
 *
 * An input is: failures (fail.h), the depth, then an event and its arguments, again and again.
 */
#include "daemon/engine/engine.h"
#include "tests/fuzz/input.h"

#include <stdlib.h>

enum { FEEDS = 4, STREAMS = 2, WINDOW = 5, MOST_READS = 32, SHARDS = 3 };

struct session {
	struct feed *feed;
	struct ring ring;
	void *meta, *data;
	uint64_t rank, world, next, end;
	uint32_t stream, slots, rows;
	uint64_t seen;		      /* published slots that were checked */
	uint64_t released;	      /* as an honest client writes it */
	bool honest, failed, leaving; /* only an honest client's rows are checked */
};

struct rig {
	struct engine *engine;
	struct engine_actions out;
	struct session session[FEEDS];
	struct engine_action reading[MOST_READS + STREAMS];
	unsigned reads, depth;
	bool slow[FEEDS];
};

static uint64_t shard_tokens[SHARDS] = {401, 3, 60};
static uint64_t first_window[SHARDS + 1];
static struct table table = {.window_tokens = WINDOW,
	.stride = 4,
	.shards = SHARDS,
	.tokens = shard_tokens,
	.first_window = first_window};

/* ---- sessions ---- */

static bool begin(struct cursor *c, uint64_t samples, uint64_t next)
{
	struct cursor id = {.stream = "s",
		.seed = 1,
		.seq_len = 4,
		.extra = 1,
		.stride = 4,
		.samples = samples};
	struct cursor_source source = {
		"d", 1, table.windows, 1, 64, 64, ORDER_GLOBAL, false, 0, 0, 0};
	struct fault fault;

	return cursor_begin(c, &id, &source, 1, NULL, 0, &fault) && cursor_seek(c, next, &fault);
}

static void session_free(struct session *s)
{
	feed_free(s->feed);
	free(s->meta);
	free(s->data);
	*s = (struct session){0};
}

static bool session_make(struct session *s, uint32_t id, struct input *in)
{
	struct feed_source source = {.table = &table, .owner = &table};
	uint8_t shape = input_byte(in), place = input_byte(in), kind = input_byte(in);
	uint64_t samples = kind & 1 ? 1 + input_number(in, 2) : 0;
	struct ring_geometry g;
	struct cursor cursor = {0};
	struct fault fault;

	*s = (struct session){.honest = !(kind & 2),
		.slots = 1 + shape % 8,
		.rows = 1 + shape / 8 % 4,
		.world = 1 + place % 8,
		.stream = shape / 64 % STREAMS};
	s->rank = place / 8 % s->world;
	s->next = kind & 4 ? input_any(in) : place;
	if (samples && s->next > samples)
		s->next = samples;
	if (!begin(&cursor, samples, s->next) ||
		!ring_geometry(&g, s->slots, s->rows, WINDOW, 2 + kind / 8 % 2 * 2, kind / 16 % 4,
			&fault)) {
		cursor_free(&cursor);
		return false;
	}
	s->end = cursor_end(&cursor);
	s->meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	s->data = aligned_alloc(RING_PAGE, g.data_bytes);
	assert(s->meta && s->data);
	memset(s->meta, 0, g.meta_bytes);
	memset(s->data, 0, g.data_bytes);
	ring_format(&s->ring, &g, s->meta, s->data);
	s->feed = feed_new(&cursor, &(struct feed_options){.id = id,
					    .stream = s->stream,
					    .user = place / 64,
					    .rank = s->rank,
					    .world = s->world,
					    .ring = s->ring,
					    .source = &source});
	cursor_free(&cursor);
	if (s->feed)
		return true;
	session_free(s);
	return false;
}

/* ---- what an honest client sees ---- */

static void check_row(const struct session *s, uint64_t slot, uint32_t r)
{
	const struct ring_row *row = &ring_rows(&s->ring, slot)[r];
	uint64_t first = order_rank_position(s->next, slot, s->rank, s->world, s->rows);
	uint64_t position = first + r;

	if (position < first || position >= s->end) {
		assert(row->position == RING_PADDING);
		return;
	}
	assert(row->position == position && row->dataset == 0 && row->shard < SHARDS);
	assert(row->window < table.windows);
	assert(row->offset + WINDOW <= shard_tokens[row->shard]);
}

static void check_session(struct session *s)
{
	uint64_t published = ring_published(&s->ring), end = atomic_load(&s->ring.header->end);
	struct feed_counters counters = feed_counters(s->feed);

	assert(published >= s->seen && published <= end);
	assert(counters.released <= counters.published);
	ring_check(&s->ring);
	if (s->honest)
		for (; s->seen < published; s->seen++) {
			assert(published <= s->released + s->slots);
			for (uint32_t r = 0; r < s->rows; r++)
				check_row(s, s->seen, r);
		}
	s->seen = published;
}

/* ---- stepping ---- */

static void take_action(struct rig *rig, const struct engine_action *a)
{
	struct session *s = &rig->session[a->id];
	const struct ring_geometry *g = &s->ring.geometry;

	assert(a->id < FEEDS && s->feed);
	switch (a->type) {
	case ENGINE_READ:
		assert(rig->reads < rig->depth + STREAMS && a->shard < SHARDS);
		assert(a->token + a->tokens <= shard_tokens[a->shard]);
		assert((uint8_t *)a->to >= s->ring.data);
		assert((uint8_t *)a->to + a->tokens * g->token_bytes <=
			s->ring.data + g->control_at);
		rig->reading[rig->reads++] = *a;
		break;
	case ENGINE_HOSTILE:
		assert(!s->honest);
		s->failed = true;
		break;
	case ENGINE_FAILED:
		assert(a->fault != FAULT_NONE);
		s->failed = true;
		break;
	case ENGINE_GONE:
		assert(a->feed == s->feed && s->leaving);
		session_free(s);
		break;
	case ENGINE_CANCEL: /* only for reads from stores */
		assert(!"cancelled");
		break;
	case ENGINE_WAKE:
		assert(!s->leaving && !s->failed);
	}
}

static void step(struct rig *rig, struct engine_event event)
{
	do {
		engine_step(rig->engine, &event, &rig->out);
		for (unsigned i = 0; i < rig->out.count; i++)
			take_action(rig, &rig->out.action[i]);
		event = (struct engine_event){.type = ENGINE_PUMP};
	} while (rig->out.more);
	for (uint32_t id = 0; id < FEEDS; id++)
		if (rig->session[id].feed)
			check_session(&rig->session[id]);
}

static void attach(struct rig *rig, uint32_t id, struct input *in)
{
	if (rig->session[id].feed || !session_make(&rig->session[id], id, in))
		return;
	step(rig, (struct engine_event){
			  .type = ENGINE_ATTACH, .id = id, .feed = rig->session[id].feed});
}

static void detach(struct rig *rig, uint32_t id)
{
	struct session *s = &rig->session[id];

	if (!s->feed || s->leaving)
		return;
	s->leaving = true;
	step(rig, (struct engine_event){.type = ENGINE_DETACH, .id = id});
}

static void done(struct rig *rig, uint8_t which, enum fault_code fault)
{
	if (rig->reads == 0)
		return;
	unsigned at = which % rig->reads;
	struct engine_action a = rig->reading[at];

	memset(a.to, 'x', a.tokens * rig->session[a.id].ring.geometry.token_bytes);
	rig->reading[at] = rig->reading[--rig->reads];
	step(rig, (struct engine_event){.type = ENGINE_DONE, .tag = a.tag, .fault = fault});
}

/* An honest client releases what is published; another writes anything. */
static void release(struct session *s, struct input *in)
{
	uint8_t how = input_byte(in);
	uint64_t published = ring_published(&s->ring);

	if (s->honest)
		s->released += how % (published - s->released + 1);
	else
		s->released = how < 128 ? published - how % 16 : input_any(in);
	atomic_store(&s->ring.control->released, s->released);
}

static void wait_for(struct session *s, struct input *in)
{
	uint64_t published = ring_published(&s->ring);

	atomic_store(
		&s->ring.control->client_waits, input_byte(in) % 4 ? published + 1 : input_any(in));
}

/* Any client may write to its slots, and to the rest of its data, except that an honest one writes
 * the words of the control page as it should. */
static void scribble(struct session *s, struct input *in)
{
	uint64_t most = s->honest ? s->ring.geometry.control_at : s->ring.geometry.data_bytes;
	uint64_t at = input_number(in, 2) % most, n = input_byte(in);

	memset((uint8_t *)s->data + at, input_byte(in), n < most - at ? n : most - at);
	s->released = atomic_load(&s->ring.control->released);
}

static void event(struct rig *rig, struct input *in)
{
	uint8_t byte = input_byte(in);
	uint32_t id = byte / 16 % FEEDS;
	struct session *s = &rig->session[id];

	switch (byte % 16) {
	case 0:
	case 1:
		attach(rig, id, in);
		return;
	case 2:
		detach(rig, id);
		return;
	case 3:
	case 4:
	case 5:
		done(rig, input_byte(in), FAULT_NONE);
		return;
	case 6:
		done(rig, input_byte(in), FAULT_IO);
		return;
	case 7:
		step(rig, (struct engine_event){.type = byte & 64 ? ENGINE_REFILL : ENGINE_TICK});
		return;
	case 8:
		step(rig, (struct engine_event){.type = ENGINE_PAUSE, .on = byte & 128});
		return;
	case 9:
	case 10:
		step(rig, (struct engine_event){.type = ENGINE_KICK, .id = input_byte(in)});
		return;
	}
	if (!s->feed)
		return;
	if (byte % 16 == 11 || byte % 16 == 12)
		release(s, in);
	else if (byte % 16 == 13)
		wait_for(s, in);
	else
		scribble(s, in);
}

/* A client's header of the ring, as libtokend reads it. */
static void open_header(struct input *in)
{
	static alignas(RING_PAGE) uint8_t meta[RING_PAGE * 2], data[RING_PAGE * 4];
	struct ring_header *header = (struct ring_header *)meta;
	struct ring_geometry g;
	struct ring ring;
	struct fault fault = {0};
	uint8_t shape = input_byte(in);

	memset(meta, 0, sizeof(meta));
	if (!ring_geometry(&g, shape % 4, input_byte(in) % 4, input_any(in), input_byte(in) % 10,
		    shape / 4 % 4, &fault)) {
		check_fault(&fault);
		return;
	}
	header->magic = RING_MAGIC;
	header->version = RING_VERSION;
	header->geometry = g;
	for (uint8_t n = shape / 16; n > 0; n--)
		meta[input_byte(in) % (sizeof(g) + 16)] ^= input_byte(in);
	if (g.meta_bytes > sizeof(meta) || g.data_bytes > sizeof(data))
		return;
	if (ring_open(&ring, meta, g.meta_bytes, data, g.data_bytes, &fault))
		ring_check(&ring);
	else
		check_fault(&fault);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct rig rig;
	struct input in = {data, size};
	uint8_t depth;

	table_number(&table);
	input_fail(&in);
	depth = input_byte(&in);
	if (depth == 255) {
		open_header(&in);
		fail_end();
		return 0;
	}
	rig = (struct rig){.depth = 1 + depth % MOST_READS};
	rig.engine = engine_new(rig.depth, 1);
	while (rig.engine && in.n > 0)
		event(&rig, &in);
	fail_end();
	while (rig.reads > 0)
		done(&rig, 0, FAULT_NONE);
	for (uint32_t id = 0; id < FEEDS; id++)
		detach(&rig, id);
	while (rig.reads > 0)
		done(&rig, 0, FAULT_NONE);
	engine_free(rig.engine);
	return 0;
}
