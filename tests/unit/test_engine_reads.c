/* Reads of the engine: their annotations, their faults, and hostile clients. */
#include "daemon/engine/engine.h"
#include "daemon/reader/documents.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/feeds.h"

/* ---- documents ---- */

/* documents_find(), computed plainly. */
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
		*start = malloc(
			n * sizeof(*start)); /* exact sizes, so that sanitizers see the edges */
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

static void documents_begin_after_each_eos(void **state)
{
	struct rng rng = {31};
	uint32_t tokens[MANY], start[2];
	const uint32_t u32[] = {65536, 0xffffffff, 1};

	(void)state;
	for (unsigned round = 0; round < 3000; round++) {
		uint32_t n = 1 + (uint32_t)rng_below(&rng, MANY),
			 eos = (uint32_t)rng_below(&rng, 65536);
		uint64_t rare =
			round % 5 == 0 ? 1
				       : 1 + rng_below(&rng, 2 * n); /* 1: every token is the eos */

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
	assert_int_equal(documents_find(start, u32, 3, 2, 65536),
		0); /* 65536 does not fit a u16, and must not match 0 */
	assert_int_equal(documents_find(start, u32, 0, 4, 1), 0);
}

/* A read requests its row's annotations, with the row's own destination. Padding has none. */
static void reads_request_annotations(void **state)
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
	done(r, 3ull << 32 | 4, FAULT_IO, true); /* a retry has the same destination */
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

static void rings_without_room_request_no_annotations(void **state)
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

/* ---- stores ---- */

/* Reads from stores have queues of their own; what waits for one goes on when its reads are done.
 */
static void a_full_queue_delays_no_other(void **state)
{
	struct rig *r = rig_make(4);
	struct session s[] = {
		session_make(&(struct shape){.id = 0, .queue = 1, .slots = 8, .rows = 1}),
		session_make(&(struct shape){.id = 1, .queue = 1, .slots = 8, .rows = 1}),
		session_make(&(struct shape){.id = 2, .queue = 2, .slots = 8, .rows = 1}),
		session_make(&(struct shape){.id = 3, .slots = 8, .rows = 1}),
	};
	const unsigned begun[] = {6, 0, 6, 3}; /* a stream may use three quarters of local reads */

	(void)state;
	engine_store_depth(r->engine, 6);
	for (uint32_t id = 0; id < 4; id++) {
		attach(r, &s[id], id);
		assert_int_equal(count(r, ENGINE_READ), begun[id]);
	}
	done(r, 2ull << 32, 0, false);
	assert_int_equal(r->out.action[0].id, 2);
	done(r, 0, 0, false);
	assert_int_equal(count(r, ENGINE_READ), 1);
	for (uint32_t id = 0; id < 4; id++)
		leave(r, &s[id], id);
	rig_free(r);
}

/* Ends the oldest read of feed @id, whose client releases all batches. Returns whether it had one.
 */
static bool go_on(struct rig *r, const struct session *s, uint32_t id)
{
	unsigned i = 0;

	while (i < r->reads && r->reading[i] >> 32 != id)
		i++;
	if (i == r->reads)
		return false;
	done(r, r->reading[i], 0, false);
	while (r->out.more)
		pump(r);
	if (ring_release(&s->ring, published(s)) != 0)
		kick(r, id);
	return true;
}

/* Beside a feed of a store, others wait for room in the local queue. Reads of two streams that
 * never end leave an eighth of it. */
static void streams_that_hang_stop_no_other(void **state)
{
	enum { LOCALS = 4, ROWS = 16, STORE = LOCALS };
	struct rig *r = rig_make(LIMIT_READS / 2);
	struct session s[LOCALS + 1];

	(void)state;
	for (uint32_t id = STORE; id <= STORE; id--) {
		s[id] = session_make(&(struct shape){
			.id = id, .stream = id, .slots = 64, .rows = ROWS, .queue = id == STORE});
		attach(r, &s[id], id);
	}
	for (uint32_t id = 0; id < LOCALS; id++)
		for (unsigned row = 0; row < ROWS; row++)
			assert_true(go_on(r, &s[id], id));
	for (unsigned n = 0; n < 10000; n++) /* nothing of streams 0 and 1 ends any more */
		for (uint32_t id = 2; id < LOCALS; id++)
			assert_true(go_on(r, &s[id], id));
	for (uint32_t id = 0; id <= STORE; id++)
		leave(r, &s[id], id);
	rig_free(r);
}

static void a_feed_that_leaves_cancels_its_reads_from_stores(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.queue = 1, .slots = 2, .rows = 1});

	(void)state;
	engine_store_depth(r->engine, DEPTH);
	attach(r, &s, 0);
	assert_int_equal(detach(r, 0), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_CANCEL);
	assert_int_equal(done(r, 0, FAULT_IO, false), 0); /* fails no stream */
	assert_int_equal(done(r, 1, FAULT_IO, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	session_free(&s);
	rig_free(r);
}

static void check_wake(unsigned queue, unsigned released)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.queue = queue, .slots = 8, .rows = 1});

	engine_store_depth(r->engine, DEPTH);
	attach(r, &s, 0);
	read_all(r);
	ring_release(&s.ring, released - 1);
	assert_int_equal(kick(r, 0), 0);
	assert_int_equal(ring_release(&s.ring, released), released);
	assert_true(ring_wanted(&s.ring));
	assert_int_equal(kick(r, 0), released);
	leave(r, &s, 0);
	rig_free(r);
}

/* Three quarters of the ring are left to hide the latency of a store. */
static void a_feed_of_a_store_wakes_up_earlier(void **state)
{
	(void)state;
	check_wake(0, 4);
	check_wake(1, 2);
}

static void a_reason_is_shown_and_taken_back(void **state)
{
	static struct ring_header header;
	const struct ring ring = {.header = &header};
	char text[RING_REASON_BYTES], longer[2 * RING_REASON_BYTES];

	(void)state;
	assert_false(ring_reason(&ring, text));
	ring_say_reason(&ring, "s3://corpus: 503 SlowDown");
	assert_true(ring_reason(&ring, text));
	assert_string_equal(text, "s3://corpus: 503 SlowDown");
	memset(longer, 'x', sizeof(longer) - 1);
	longer[3] = '\n';
	longer[sizeof(longer) - 1] = 0;
	ring_say_reason(&ring, longer);
	assert_true(ring_reason(&ring, text));
	assert_int_equal(strlen(text), RING_REASON_BYTES - 1);
	assert_int_equal(text[3], '?');
	header.wait_version++; /* a daemon that was killed while it wrote */
	assert_false(ring_reason(&ring, text));
	ring_say_reason(&ring, "again");
	assert_true(ring_reason(&ring, text));
	ring_say_reason(&ring, "");
	assert_false(ring_reason(&ring, text));
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

/* Each read has three tries of its own: an error that hits every row once does not stop the
 * stream. */
static void tries_are_counted_for_each_read(void **state)
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

static void a_try_does_not_count_for_the_next_read(void **state)
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

/* All feeds of the stream stop, and each reports it once; another stream continues. */
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
	/* Reads of the other feeds are still in flight. The last feeds could not begin any. */
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
	assert_int_equal(kick(r, 1), 0); /* it is reported once */
	ring_release(&good.ring, 2);
	assert_int_equal(kick(r, 2), 2);
	leave(r, &good, 2);
	leave(r, &bad, 1);
	rig_free(r);
}

static void impossible_words_of_a_client_are_reported(void **state)
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
	ring_release(&s.ring, 99); /* an impossible number is not shown */
	assert_int_equal(feed_counters(s.feed).released, 2);
	assert_int_equal(c.pinned, 0);
	ring_say_pinned(&s.ring, 4096);
	assert_int_equal(feed_counters(s.feed).pinned, 4096);
	ring_say_pinned(&s.ring, UINT64_MAX - 1); /* this one neither */
	assert_int_equal(feed_counters(s.feed).pinned, s.ring.geometry.data_bytes);
	ring_say_pinned(&s.ring, RING_UNPINNED);
	assert_int_equal(feed_counters(s.feed).pinned, RING_UNPINNED);
	leave(r, &s, 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(documents_begin_after_each_eos),
		cmocka_unit_test(reads_request_annotations),
		cmocka_unit_test(rings_without_room_request_no_annotations),
		cmocka_unit_test(a_full_queue_delays_no_other),
		cmocka_unit_test(streams_that_hang_stop_no_other),
		cmocka_unit_test(a_feed_that_leaves_cancels_its_reads_from_stores),
		cmocka_unit_test(a_feed_of_a_store_wakes_up_earlier),
		cmocka_unit_test(a_reason_is_shown_and_taken_back),
		cmocka_unit_test(a_fault_that_may_pass_is_tried_three_times),
		cmocka_unit_test(tries_are_counted_for_each_read),
		cmocka_unit_test(a_try_does_not_count_for_the_next_read),
		cmocka_unit_test(a_fault_stops_its_stream_only),
		cmocka_unit_test(impossible_words_of_a_client_are_reported),
		cmocka_unit_test(counters),
	};

	return cmocka_run_group_tests_name("engine reads", tests, NULL, NULL);
}
