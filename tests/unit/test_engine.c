/*
 * The core, one behaviour at a time: events in, actions out, nothing else around it. The simulator
 * (tests/sim) does the same with everything at once.
 */
#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"
#include "daemon/reader/documents.h"

#include "tests/unit/rng.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOW = 5, DEPTH = 64, MANY = 600 };

/* One dataset of a hundred windows in one shard; a window is 4 tokens and one. */
static uint64_t shard_tokens[] = {401};
static uint64_t first_window[2];
static struct table table = {.window_tokens = WINDOW,
	.stride = 4,
	.shards = 1,
	.tokens = shard_tokens,
	.first_window = first_window};
static const struct feed_source source = {.table = &table, .owner = &table};

static struct cursor begin(uint64_t samples, uint64_t next)
{
	struct cursor id = {.stream = "s",
			      .seed = 1,
			      .seq_len = 4,
			      .extra = 1,
			      .stride = 4,
			      .samples = samples},
		      c;
	struct cursor_source sources[] = {{"d", 1, 100, 1, 64, 64, ORDER_NONE, false, 0}};
	struct fault fault;

	table_number(&table);
	assert_int_equal(table.windows, 100);
	assert_true(cursor_begin(&c, &id, sources, 1, NULL, 0, &fault));
	assert_true(cursor_seek(&c, next, &fault));
	return c;
}

/* A feed, its memory, and the client's words in it. */
struct session {
	struct feed *feed;
	struct ring ring;
	void *meta, *data;
};

struct shape {
	uint32_t id, stream, slots, rows;
	uint64_t rank, world, samples, next;
	unsigned annotations;
};

static struct session session_make(const struct shape *shape)
{
	struct session s = {0};
	struct ring_geometry g;
	struct cursor cursor = begin(shape->samples, shape->next);
	struct fault fault;

	assert_true(ring_geometry(
		&g, shape->slots, shape->rows, WINDOW, 4, shape->annotations, &fault));
	s.meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	s.data = aligned_alloc(RING_PAGE, g.data_bytes);
	assert_true(s.meta && s.data);
	memset(s.meta, 0, g.meta_bytes);
	memset(s.data, 0, g.data_bytes);
	ring_format(&s.ring, &g, s.meta, s.data);
	s.feed = feed_new(&cursor, &(struct feed_options){
					   .id = shape->id,
					   .stream = shape->stream,
					   .rank = shape->rank,
					   .world = shape->world ? shape->world : 1,
					   .ring = s.ring,
					   .source = &source,
				   });
	assert_non_null(s.feed);
	cursor_free(&cursor);
	return s;
}

static void session_free(struct session *s)
{
	feed_free(s->feed);
	free(s->meta);
	free(s->data);
}

static uint64_t published(const struct session *s)
{
	return ring_published(&s->ring);
}

/* ---- stepping ---- */

struct rig {
	struct engine *engine;
	struct engine_actions out;
	uint64_t reading[LIMIT_READS];		     /* tags of the reads in flight, oldest first */
	struct annotations annotations[LIMIT_READS]; /* what is asked of them */
	unsigned reads;
};

static struct rig *rig_make(unsigned depth)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->engine = engine_new(depth);
	assert_non_null(r->engine);
	return r;
}

static void rig_free(struct rig *r)
{
	engine_free(r->engine);
	free(r);
}

static unsigned step(struct rig *r, struct engine_event event)
{
	r->out.count = 0;
	engine_step(r->engine, &event, &r->out);
	for (unsigned i = 0; i < r->out.count; i++)
		if (r->out.action[i].type == ENGINE_READ) {
			assert_true(r->reads < LIMIT_READS);
			r->annotations[r->reads] = r->out.action[i].annotations;
			r->reading[r->reads++] = r->out.action[i].tag;
		}
	return r->out.count;
}

static unsigned attach(struct rig *r, const struct session *s, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_ATTACH, .id = id, .feed = s->feed});
}

static unsigned kick(struct rig *r, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_KICK, .id = id});
}

static unsigned detach(struct rig *r, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_DETACH, .id = id});
}

static unsigned tick(struct rig *r)
{
	return step(r, (struct engine_event){.type = ENGINE_TICK, .id = UINT32_MAX});
}

static unsigned done(struct rig *r, uint64_t tag, int fault, bool retryable)
{
	unsigned at = 0;

	while (at < r->reads && r->reading[at] != tag)
		at++;
	assert_true(at < r->reads);
	memmove(&r->reading[at], &r->reading[at + 1], (--r->reads - at) * sizeof(tag));
	memmove(&r->annotations[at], &r->annotations[at + 1],
		(r->reads - at) * sizeof(r->annotations[at]));
	return step(r, (struct engine_event){.type = ENGINE_DONE,
			       .id = UINT32_MAX,
			       .tag = tag,
			       .fault = fault,
			       .retryable = retryable});
}

static unsigned count(const struct rig *r, int type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->out.count; i++)
		n += (int)r->out.action[i].type == type;
	return n;
}

static void pump(struct rig *r)
{
	step(r, (struct engine_event){.type = ENGINE_PUMP, .id = UINT32_MAX});
}

/* Carries out every read, oldest first, as well as those that follow from it. */
static void read_all(struct rig *r)
{
	while (r->out.more || r->reads > 0)
		if (r->out.more)
			pump(r);
		else
			done(r, r->reading[0], 0, false);
}

static void leave(struct rig *r, struct session *s, uint32_t id)
{
	read_all(r);
	assert_int_equal(detach(r, id), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	assert_ptr_equal(r->out.action[0].feed, s->feed);
	session_free(s);
}

/* ---- planning ---- */

static void an_attach_fills_the_ring(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(
		&(struct shape){.id = 7, .slots = 3, .rows = 2, .rank = 1, .world = 4});

	(void)state;
	assert_int_equal(attach(r, &s, 7), 6);
	for (unsigned i = 0; i < 6; i++) {
		const struct engine_action *a = &r->out.action[i];
		uint64_t position = i / 2 * 8 + 2 + i % 2;
		const struct ring_row *row = &ring_rows(&s.ring, i / 2)[i % 2];

		assert_int_equal(a->type, ENGINE_READ);
		assert_ptr_equal(a->owner, &table);
		assert_int_equal(a->shard, 0);
		assert_int_equal(a->token, position * 4);
		assert_int_equal(a->tokens, WINDOW);
		assert_ptr_equal(
			a->to, (uint8_t *)ring_slot_data(&s.ring, i / 2) + i % 2 * WINDOW * 4);
		assert_true(row->position == position && row->window == position &&
			    row->offset == position * 4);
	}
	assert_int_equal(published(&s), 0);
	leave(r, &s, 7);
	rig_free(r);
}

static void depth_bounds_the_reads(void **state)
{
	struct rig *r = rig_make(3);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 4});

	(void)state;
	assert_int_equal(attach(r, &s, 0), 3);
	uint64_t tag = r->out.action[1].tag;

	assert_int_equal(done(r, tag, 0, false), 1); /* one done, one more */
	assert_int_equal(r->out.action[0].type, ENGINE_READ);
	leave(r, &s, 0);
	rig_free(r);
}

static void slots_are_published_in_order(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 3, .rows = 1});
	uint64_t tag[3];

	(void)state;
	attach(r, &s, 0);
	for (unsigned i = 0; i < 3; i++)
		tag[i] = r->out.action[i].tag;
	done(r, tag[2], 0, false);
	assert_int_equal(published(&s), 0);
	done(r, tag[0], 0, false);
	assert_int_equal(published(&s), 1);
	done(r, tag[1], 0, false);
	assert_int_equal(published(&s), 3);
	leave(r, &s, 0);
	rig_free(r);
}

/* A turn is as many rows as its quantum pays for, whatever a slot is. */
static void two_feeds_take_turns(void **state)
{
	struct rig *r = rig_make(5); /* of which one stream may have 4 */
	struct session a = session_make(&(struct shape){.id = 1, .slots = 64, .rows = 4});
	struct session b = session_make(&(struct shape){.id = 2, .slots = 64, .rows = 4});
	unsigned turn = (TURN_QUANTUM + TURN_ROW + WINDOW * 4 - 1) / (TURN_ROW + WINDOW * 4),
		 begun[3] = {0};

	(void)state;
	assert_int_equal(attach(r, &a, 1), 4);
	assert_int_equal(attach(r, &b, 2), 0);
	for (unsigned row = 4; row < 6 * turn; row++) {
		assert_int_equal(done(r, r->reading[0], 0, false), 1);
		uint32_t id = r->out.action[0].id;

		begun[id]++;
		assert_true(
			begun[1] + 4 <= begun[2] + turn + 1 && begun[2] <= begun[1] + 4 + turn + 1);
	}
	assert_true(begun[1] > 2 * turn && begun[2] > 2 * turn);
	read_all(r);
	leave(r, &a, 1);
	leave(r, &b, 2);
	rig_free(r);
}

static void a_full_list_goes_on_with_pump(void **state)
{
	struct rig *r = rig_make(LIMIT_READS);
	struct session s = session_make(&(struct shape){.slots = 4, .rows = 90});
	unsigned reads;

	(void)state;
	reads = attach(r, &s, 0);
	assert_true(r->out.more && reads <= ENGINE_ACTIONS);
	pump(r);
	reads += r->out.count;
	assert_false(r->out.more);
	assert_int_equal(reads, 360);
	for (unsigned i = 0; i < reads; i++)
		done(r, i, 0, false);
	assert_int_equal(published(&s), 4);
	leave(r, &s, 0);
	rig_free(r);
}

/* ---- waiting ---- */

static void a_full_ring_sleeps_until_half_is_free(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 4, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(published(&s), 4);
	assert_int_equal(atomic_load(&s.ring.header->wake_at), 2);
	assert_int_equal(kick(r, 0), 0); /* nothing released: nothing to do */
	assert_int_equal(ring_release(&s.ring, 1), 0);
	assert_int_equal(ring_release(&s.ring, 2), 2);
	assert_int_equal(kick(r, 0), 2);
	assert_int_equal(count(r, ENGINE_READ), 2);
	read_all(r);
	assert_int_equal(published(&s), 6);
	leave(r, &s, 0);
	rig_free(r);
}

/*
 * A client may wait for a slot while it still holds others: then half of the ring never gets free,
 * and one free slot must do. It sends the byte when it begins to wait.
 */
static void a_waiting_client_gets_the_one_slot_there_is(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 4, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	ring_release(&s.ring, 1); /* took four, holds three */
	assert_false(ring_wait_begin(&s.ring, 4));
	assert_int_equal(kick(r, 0), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_READ);
	done(r, r->out.action[0].tag, 0, false);
	assert_int_equal(count(r, ENGINE_WAKE), 1);
	assert_int_equal(published(&s), 5);
	leave(r, &s, 0);
	rig_free(r);
}

static void a_waiting_client_is_woken_once(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.id = 3, .slots = 3, .rows = 1});
	uint64_t tag[3];

	(void)state;
	attach(r, &s, 3);
	for (unsigned i = 0; i < 3; i++)
		tag[i] = r->out.action[i].tag;
	assert_false(ring_wait_begin(&s.ring, 1));
	assert_int_equal(done(r, tag[0], 0, false), 0); /* not the one it waits for */
	assert_int_equal(done(r, tag[1], 0, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_WAKE);
	assert_int_equal(r->out.action[0].id, 3);
	assert_int_equal(done(r, tag[2], 0, false), 0);
	ring_wait_end(&s.ring);
	leave(r, &s, 3);
	rig_free(r);
}

static void a_tick_finds_a_lost_byte(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(tick(r), 0);
	assert_int_equal(tick(r), 0);
	assert_int_equal(ring_release(&s.ring, 2), 1); /* and the byte never comes */
	assert_int_equal(tick(r), 0);		       /* it may be on its way */
	assert_int_equal(feed_counters(s.feed).lost_wakes, 0);
	assert_int_equal(tick(r), 2);
	assert_int_equal(feed_counters(s.feed).lost_wakes, 1);
	leave(r, &s, 0);
	rig_free(r);
}

/* ---- ends ---- */

static void batches(void **state)
{
	static const struct {
		uint64_t end, next, world, micro_batch, batches;
	} cases[] = {{10, 0, 1, 1, 10}, {10, 0, 2, 3, 2}, {12, 0, 2, 3, 2}, {13, 0, 2, 3, 3},
		{13, 13, 2, 3, 0}, {13, 12, 8, 8, 1},
		{UINT64_MAX - 1, 0, LIMIT_WORLD, LIMIT_MICRO_BATCH, UINT64_C(1) << 16},
		{UINT64_MAX - 1, 0, 1, 1, UINT64_MAX - 1}, {0, 5, 3, 2, RING_ENDLESS}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct cursor c = begin(cases[i].end, cases[i].next);

		assert_int_equal(
			feed_batches(&c, cases[i].world, cases[i].micro_batch), cases[i].batches);
		cursor_free(&c);
	}
}

/* Thirteen samples over two ranks of three: rank 0 ends with one, rank 1 with none, after three
 * batches each.
 */
static void padding_at_the_end(void **state)
{
	(void)state;
	for (uint64_t rank = 0; rank < 2; rank++) {
		struct rig *r = rig_make(DEPTH);
		struct session s = session_make(&(struct shape){
			.slots = 8, .rows = 3, .rank = rank, .world = 2, .samples = 13});
		const struct ring_row *row = ring_rows(&s.ring, 2);

		memset(s.data, 0xee, s.ring.geometry.control_at);
		attach(r, &s, 0);
		read_all(r);
		assert_int_equal(published(&s), 3);
		assert_int_equal(atomic_load(&s.ring.header->end), 3);
		assert_int_equal(ring_slot(&s.ring, 2)->rows_valid, rank ? 0 : 1);
		for (unsigned i = rank ? 0 : 1; i < 3; i++) {
			const uint8_t *bytes =
				(uint8_t *)ring_slot_data(&s.ring, 2) + i * WINDOW * 4;

			assert_true(row[i].position == RING_PADDING);
			assert_true(row[i].window == 0 && row[i].offset == 0 && row[i].epoch == 0);
			for (unsigned b = 0; b < WINDOW * 4; b++)
				assert_int_equal(bytes[b], 0);
		}
		leave(r, &s, 0);
		rig_free(r);
	}
}

static void nothing_behind_the_end(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s =
		session_make(&(struct shape){.slots = 4, .rows = 2, .samples = 10, .next = 10});

	(void)state;
	assert_int_equal(attach(r, &s, 0), 0);
	assert_int_equal(atomic_load(&s.ring.header->end), 0);
	leave(r, &s, 0);
	rig_free(r);
}

/* ---- documents ---- */

/* As documents_find() has to do it. */
static uint32_t find_slowly(uint32_t *start, const uint32_t *tokens, uint32_t n, uint32_t eos)
{
	uint32_t found = 0;

	for (uint32_t i = 1; i < n; i++)
		if (tokens[i - 1] == eos)
			start[found++] = i;
	return found;
}

static void check_find(const uint32_t *tokens, uint32_t n, uint32_t eos)
{
	uint32_t expected[MANY],
		*start = malloc(n * sizeof(*start)); /* so that sanitizers see the edges */
	uint32_t *wide = malloc(n * sizeof(*wide));
	uint16_t *narrow = malloc(n * sizeof(*narrow));

	assert_true(start && wide && narrow);
	for (uint32_t i = 0; i < n; i++)
		wide[i] = narrow[i] = (uint16_t)tokens[i];
	uint32_t found = find_slowly(expected, wide, n, eos);

	assert_int_equal(documents_find(start, wide, n, 4, eos), found);
	assert_memory_equal(start, expected, found * sizeof(*start));
	memset(start, 0xee, n * sizeof(*start));
	assert_int_equal(documents_find(start, narrow, n, 2, eos), found);
	assert_memory_equal(start, expected, found * sizeof(*start));
	free(start);
	free(wide);
	free(narrow);
}

static void documents_begin_behind_each_eos(void **state)
{
	struct rng rng = {31};
	uint32_t tokens[MANY], start[2];
	const uint32_t u32[] = {65536, 0xffffffff, 1};

	(void)state;
	for (unsigned round = 0; round < 3000; round++) {
		uint32_t n = 1 + (uint32_t)rng_below(&rng, MANY),
			 eos = (uint32_t)rng_below(&rng, 65536);
		uint64_t rare =
			round % 5 == 0 ? 1 : 1 + rng_below(&rng, 2 * n); /* 1: nothing but eos */

		for (uint32_t i = 0; i < n; i++)
			tokens[i] =
				rng_below(&rng, rare) == 0 ? eos : (uint32_t)rng_below(&rng, 65536);
		tokens[0] = round & 1 ? eos : tokens[0];
		tokens[n - 1] = round & 2 ? eos : tokens[n - 1];
		check_find(tokens, n, eos);
	}
	assert_int_equal(documents_find(start, u32, 3, 4, 65536), 1);
	assert_int_equal(start[0], 1);
	assert_int_equal(documents_find(start, u32, 3, 4, 0xffffffff), 1);
	assert_int_equal(start[0], 2);
	assert_int_equal(
		documents_find(start, u32, 3, 2, 65536), 0); /* no u16 is that, 0 neither */
	assert_int_equal(documents_find(start, u32, 0, 4, 1), 0);
}

/* A read is asked for a row's annotations where the ring has them, into the row's own place;
 * padding has none. */
static void reads_bring_annotations(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.id = 3,
		.slots = 2,
		.rows = 3,
		.samples = 5,
		.annotations = RING_DOCUMENTS | RING_LOSS_MASK});

	(void)state;
	memset(ring_document_count(&s.ring, 0), 0xee, 6 * sizeof(uint32_t));
	memset(ring_loss_mask(&s.ring, 0), 0xee, (size_t)6 * WINDOW);
	attach(r, &s, 3);
	assert_int_equal(r->reads, 5);
	for (unsigned i = 0; i < 5; i++) {
		struct annotations asked = r->annotations[i], place = ring_annotations(&s.ring, i);

		assert_int_equal(r->reading[i], 3ull << 32 | i);
		assert_true(asked.count && asked.start && asked.loss_mask);
		assert_memory_equal(&asked, &place, sizeof(place));
	}
	done(r, 3ull << 32 | 4, EIO, true); /* tried again, for the same */
	assert_int_equal(r->reading[4], 3ull << 32 | 4);
	assert_ptr_equal(r->annotations[4].count, ring_document_count(&s.ring, 4));
	for (unsigned i = 0; i < 5; i++) {
		*r->annotations[0].count = i;
		memset(r->annotations[0].loss_mask, (int)i, WINDOW);
		done(r, 3ull << 32 | i, 0, false);
	}
	assert_int_equal(published(&s), 2);
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t is = i < 5 ? i : 0; /* padding */

		assert_int_equal(*ring_document_count(&s.ring, i), is);
		for (unsigned t = 0; t < WINDOW; t++)
			assert_int_equal(ring_loss_mask(&s.ring, i)[t], is);
	}
	leave(r, &s, 3);
	rig_free(r);
}

static void who_has_no_room_asks_for_no_annotations(void **state)
{
	struct rig *r = rig_make(DEPTH);

	(void)state;
	for (unsigned annotations = 0; annotations < 4; annotations++) {
		struct session s = session_make(&(struct shape){.id = annotations,
			.slots = 1,
			.rows = 1,
			.samples = 1,
			.annotations = annotations});

		attach(r, &s, annotations);
		assert_int_equal(r->reads, 1);
		assert_true(!r->annotations[0].count == !(annotations & RING_DOCUMENTS));
		assert_true(!r->annotations[0].start == !(annotations & RING_DOCUMENTS));
		assert_true(!r->annotations[0].loss_mask == !(annotations & RING_LOSS_MASK));
		read_all(r);
		leave(r, &s, annotations);
	}
	rig_free(r);
}

/* ---- the end, and waiting for it ---- */

/* A last batch of padding alone has no read to wait for: who waits for it is woken all the same. */
static void padding_alone_wakes(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(
		&(struct shape){.slots = 1, .rows = 2, .rank = 1, .world = 2, .samples = 6});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(published(&s), 1);
	assert_false(ring_wait_begin(&s.ring, 1));
	assert_int_equal(ring_release(&s.ring, 1), 1);
	assert_int_equal(kick(r, 0), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_WAKE);
	assert_int_equal(published(&s), 2);
	leave(r, &s, 0);
	rig_free(r);
}

/* ---- leaving ---- */

static void gone_comes_behind_the_last_read(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.id = 4, .slots = 2, .rows = 2});
	uint64_t tag[4];

	(void)state;
	assert_int_equal(attach(r, &s, 4), 4);
	for (unsigned i = 0; i < 4; i++)
		tag[i] = r->out.action[i].tag;
	assert_int_equal(detach(r, 4), 0);
	assert_int_equal(kick(r, 4), 0);
	assert_int_equal(done(r, tag[3], 0, false), 0);
	assert_int_equal(done(r, tag[0], 5, true), 0); /* no second try for nobody */
	assert_int_equal(done(r, tag[1], 5, false), 0);
	assert_int_equal(done(r, tag[2], 0, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	assert_int_equal(r->out.action[0].id, 4);
	assert_ptr_equal(r->out.action[0].feed, s.feed);
	assert_int_equal(published(&s), 0);
	session_free(&s);
	rig_free(r);
}

static void events_for_nobody_are_ignored(void **state)
{
	struct rig *r = rig_make(DEPTH);

	(void)state;
	assert_int_equal(kick(r, 9), 0);
	assert_int_equal(detach(r, 9), 0);
	assert_int_equal(kick(r, UINT32_MAX), 0);
	assert_int_equal(tick(r), 0);
	rig_free(r);
}

/* ---- faults ---- */

static bool same_read(const struct engine_action *a, const struct engine_action *b)
{
	return a->type == ENGINE_READ && b->type == ENGINE_READ && a->id == b->id &&
	       a->tag == b->tag && a->owner == b->owner && a->shard == b->shard &&
	       a->token == b->token && a->tokens == b->tokens && a->to == b->to;
}

static void a_fault_that_may_pass_is_tried_three_times(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 1, .rows = 2});

	(void)state;
	attach(r, &s, 0);
	struct engine_action read = r->out.action[1];

	for (unsigned try = 1; try < 3; try++) {
		assert_int_equal(done(r, read.tag, 5, true), 1);
		assert_true(same_read(&r->out.action[0], &read));
	}
	assert_int_equal(done(r, read.tag, 5, true), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_FAILED);
	assert_int_equal(r->out.action[0].fault, 5);
	assert_int_equal(r->out.action[0].token, read.token);
	assert_ptr_equal(r->out.action[0].owner, read.owner);
	assert_int_equal(detach(r, 0), 0);
	assert_int_equal(done(r, r->reading[0], 0, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	session_free(&s);
	rig_free(r);
}

/* Each read has its own three: a bad moment that hits every row of a slot once stops nothing. */
static void tries_are_counted_by_the_read(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 8});
	uint64_t tag[16];

	(void)state;
	assert_int_equal(attach(r, &s, 0), 16);
	for (unsigned i = 0; i < 16; i++)
		tag[i] = r->out.action[i].tag;
	for (unsigned i = 0; i < 16; i++) {
		assert_int_equal(done(r, tag[i], 5, true), 1);
		assert_int_equal(r->out.action[0].type, ENGINE_READ);
	}
	for (unsigned i = 0; i < 16; i++)
		done(r, tag[i], 0, false);
	assert_int_equal(published(&s), 2);
	leave(r, &s, 0);
	rig_free(r);
}

static void a_used_try_is_not_held_against_the_next_read(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 1, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	for (uint64_t batch = 0; batch < 5; batch++) {
		uint64_t tag = r->out.action[0].tag;

		assert_int_equal(done(r, tag, 5, true), 1);
		assert_int_equal(r->out.action[0].type, ENGINE_READ);
		assert_int_equal(done(r, tag, 0, false), 0);
		ring_release(&s.ring, batch + 1);
		assert_int_equal(kick(r, 0), 1);
	}
	leave(r, &s, 0);
	rig_free(r);
}

/* All feeds of the stream stop, each told once, however many; another stream goes on. */
static void a_fault_stops_its_stream_only(void **state)
{
	struct rig *r = rig_make(LIMIT_READS);
	struct session *s = calloc(MANY + 1, sizeof(*s));
	unsigned told = 0, gone = 0;

	(void)state;
	for (uint32_t id = 0; id <= MANY; id++) {
		s[id] = session_make(
			&(struct shape){.id = id, .stream = id == MANY, .slots = 1, .rows = 1});
		attach(r, &s[id], id);
	}
	assert_true(done(r, 0, 5, false) > 0);
	for (told = count(r, ENGINE_FAILED); r->out.more; told += count(r, ENGINE_FAILED))
		pump(r);
	/* The others' reads are still on their way; the last feeds could not even begin. */
	for (uint64_t id = 1; id <= MANY; id++) {
		struct feed_counters c;

		if (id >= LIMIT_READS - LIMIT_READS / 4 && id < MANY)
			continue;
		done(r, id << 32, 0, false);
		told += count(r, ENGINE_FAILED);
		c = feed_counters(s[id].feed);
		assert_int_equal(c.published, id == MANY);
	}
	assert_int_equal(told, MANY);
	for (uint32_t id = 0; id <= MANY; id++)
		gone += detach(r, id);
	assert_int_equal(gone, MANY + 1);
	for (uint32_t id = 0; id <= MANY; id++)
		session_free(&s[id]);
	free(s);
	rig_free(r);
}

static void hostile(uint64_t released)
{
	struct rig *r = rig_make(DEPTH);
	struct session bad = session_make(&(struct shape){.id = 1, .slots = 4, .rows = 1});
	struct session good = session_make(&(struct shape){.id = 2, .slots = 4, .rows = 1});

	attach(r, &bad, 1);
	read_all(r);
	ring_release(&bad.ring, 2);
	kick(r, 1);
	read_all(r);
	attach(r, &good, 2);
	read_all(r);
	ring_release(&bad.ring, released);
	assert_int_equal(kick(r, 1), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_HOSTILE);
	assert_int_equal(r->out.action[0].id, 1);
	ring_release(&bad.ring, 6);
	assert_int_equal(kick(r, 1), 0); /* once is enough */
	ring_release(&good.ring, 2);
	assert_int_equal(kick(r, 2), 2);
	leave(r, &good, 2);
	leave(r, &bad, 1);
	rig_free(r);
}

static void hostile_words(void **state)
{
	(void)state;
	hostile(1); /* less than before */
	hostile(7); /* more than was published */
	hostile(UINT64_MAX);
}

static void counters(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 1});

	(void)state;
	assert_false(feed_counters(s.feed).full);
	attach(r, &s, 0);
	read_all(r);
	struct feed_counters c = feed_counters(s.feed);

	assert_true(c.published == 2 && c.released == 0 && c.full && c.lost_wakes == 0);
	ring_release(&s.ring, 1);
	c = feed_counters(s.feed);
	assert_true(c.released == 1 && !c.full);
	ring_release(&s.ring, 99); /* the client's word is not believed */
	assert_int_equal(feed_counters(s.feed).released, 2);
	assert_int_equal(c.pinned, 0);
	ring_say_pinned(&s.ring, 4096);
	assert_int_equal(feed_counters(s.feed).pinned, 4096);
	ring_say_pinned(&s.ring, UINT64_MAX - 1); /* nor this one */
	assert_int_equal(feed_counters(s.feed).pinned, s.ring.geometry.data_bytes);
	ring_say_pinned(&s.ring, RING_UNPINNED);
	assert_int_equal(feed_counters(s.feed).pinned, RING_UNPINNED);
	leave(r, &s, 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_attach_fills_the_ring),
		cmocka_unit_test(depth_bounds_the_reads),
		cmocka_unit_test(slots_are_published_in_order),
		cmocka_unit_test(two_feeds_take_turns),
		cmocka_unit_test(a_full_list_goes_on_with_pump),
		cmocka_unit_test(a_full_ring_sleeps_until_half_is_free),
		cmocka_unit_test(a_waiting_client_gets_the_one_slot_there_is),
		cmocka_unit_test(a_waiting_client_is_woken_once),
		cmocka_unit_test(a_tick_finds_a_lost_byte),
		cmocka_unit_test(batches),
		cmocka_unit_test(padding_at_the_end),
		cmocka_unit_test(nothing_behind_the_end),
		cmocka_unit_test(documents_begin_behind_each_eos),
		cmocka_unit_test(reads_bring_annotations),
		cmocka_unit_test(who_has_no_room_asks_for_no_annotations),
		cmocka_unit_test(padding_alone_wakes),
		cmocka_unit_test(gone_comes_behind_the_last_read),
		cmocka_unit_test(events_for_nobody_are_ignored),
		cmocka_unit_test(a_fault_that_may_pass_is_tried_three_times),
		cmocka_unit_test(tries_are_counted_by_the_read),
		cmocka_unit_test(a_used_try_is_not_held_against_the_next_read),
		cmocka_unit_test(a_fault_stops_its_stream_only),
		cmocka_unit_test(hostile_words),
		cmocka_unit_test(counters),
	};

	return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
