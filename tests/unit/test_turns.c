/*
 * Shares of reads: the tree of turns alone, then feeds of several users in one engine. The tests
 * count; they do not measure time.
 */
#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KIB = 1 << 10, MIB = 1 << 20, LEAVES = 1000 };

/* ---- the tree ---- */

struct leaf {
	struct turn turn;
	uint64_t cost, spent;
};

static void leaf_join(struct leaf *leaf, struct turn *run, uint64_t cost)
{
	*leaf = (struct leaf){.cost = cost};
	turn_join(&leaf->turn, run);
	turn_ready(&leaf->turn, true);
}

/* Begins and ends reads until @bytes are spent. The last read may exceed them. */
static void spend(struct turn *root, uint64_t bytes)
{
	for (uint64_t spent = 0; spent < bytes;) {
		struct leaf *leaf = (struct leaf *)turn_next(root);

		assert_non_null(leaf);
		turn_spend(&leaf->turn, leaf->cost, true);
		turn_land(&leaf->turn, leaf->cost);
		leaf->spent += leaf->cost;
		spent += leaf->cost;
	}
}

static void assert_equal_shares(uint64_t a, uint64_t b, uint64_t largest)
{
	uint64_t most = 2 * (TURN_QUANTUM + largest);

	if (a > b + most || b > a + most)
		fail_msg("shares of %llu and %llu bytes", (unsigned long long)a,
			(unsigned long long)b);
}

static void a_user_of_many_sessions_gets_one_share(void **state)
{
	struct turn root = {0}, user[2] = {0}, run[2] = {0};
	struct leaf *many = calloc(LEAVES, sizeof(*many)), one;
	uint64_t spent = 0, least = UINT64_MAX, most = 0;

	(void)state;
	assert_non_null(many);
	for (int i = 0; i < 2; i++) {
		turn_join(&user[i], &root);
		turn_join(&run[i], &user[i]);
	}
	for (int i = 0; i < LEAVES; i++)
		leaf_join(&many[i], &run[0], 8 * KIB);
	leaf_join(&one, &run[1], 8 * KIB);
	spend(&root, 400 * (uint64_t)MIB);
	for (int i = 0; i < LEAVES; i++) {
		spent += many[i].spent;
		least = many[i].spent < least ? many[i].spent : least;
		most = many[i].spent > most ? many[i].spent : most;
	}
	assert_equal_shares(one.spent, spent, 8 * KIB);
	assert_true(least > 0);
	assert_equal_shares(least, most, 8 * KIB);
	free(many);
}

static void runs_of_a_user_share_its_part(void **state)
{
	struct turn root = {0}, user[2] = {0}, run[3] = {0};
	struct leaf leaf[4];

	(void)state;
	for (int i = 0; i < 2; i++)
		turn_join(&user[i], &root);
	for (int i = 0; i < 3; i++)
		turn_join(&run[i], &user[i > 0]);
	leaf_join(&leaf[0], &run[0], 8 * KIB);
	leaf_join(&leaf[1], &run[1], 8 * KIB);
	leaf_join(&leaf[2], &run[2], 8 * KIB);
	leaf_join(&leaf[3], &run[2], 8 * KIB);
	spend(&root, 64 * MIB);
	assert_equal_shares(leaf[0].spent, 32 * MIB, 8 * KIB);
	assert_equal_shares(leaf[1].spent, 16 * MIB, 8 * KIB);
	assert_equal_shares(leaf[2].spent, 8 * MIB, 8 * KIB);
	assert_equal_shares(leaf[3].spent, 8 * MIB, 8 * KIB);
}

/* Rows of 4 MiB take many turns to pay; rows of 4 KiB do not wait for them. */
static void bytes_are_shared_not_rows(void **state)
{
	struct turn root = {0}, user[2] = {0}, run[2] = {0};
	struct leaf large, small;

	(void)state;
	for (int i = 0; i < 2; i++) {
		turn_join(&user[i], &root);
		turn_join(&run[i], &user[i]);
	}
	leaf_join(&large, &run[0], 4 * MIB);
	leaf_join(&small, &run[1], 4 * KIB);
	for (int i = 0; i < 50; i++) {
		spend(&root, 3 * MIB);
		assert_equal_shares(large.spent, small.spent, 4 * MIB);
	}
}

static void debts_are_paid_even_if_another_leaves(void **state)
{
	struct turn root = {0}, user = {0}, run = {0};
	struct leaf in_and_out, steady;

	(void)state;
	turn_join(&user, &root);
	turn_join(&run, &user);
	leaf_join(&in_and_out, &run, MIB);
	leaf_join(&steady, &run, 8 * KIB);
	for (int i = 0; i < 1000; i++) {
		spend(&root, 1);
		turn_ready(&in_and_out.turn, false);
		spend(&root, 1);
		turn_ready(&in_and_out.turn, true);
	}
	assert_true(steady.spent > 2 * MIB);
	assert_true(in_and_out.spent <= steady.spent + 2 * (TURN_QUANTUM + MIB));
}

enum { HALF = TURN_IN_FLIGHT / 2 };

static unsigned reads_begun(struct turn *root, uint64_t cost)
{
	unsigned n = 0;

	for (struct turn *leaf; n < LIMIT_READS && (leaf = turn_next(root)); n++)
		turn_spend(leaf, cost, true);
	return n;
}

static void large_rows_do_not_fill_the_queue(void **state)
{
	struct turn root = {0}, user[2] = {0}, run[2] = {0};
	struct leaf a, b;

	(void)state;
	turn_join(&user[0], &root);
	turn_join(&run[0], &user[0]);
	leaf_join(&a, &run[0], HALF);
	assert_int_equal(reads_begun(&root, HALF), LIMIT_READS); /* alone: no limit */
	turn_join(&user[1], &root);
	turn_join(&run[1], &user[1]);
	leaf_join(&b, &run[1], HALF);
	turn_ready(&b.turn, false);
	for (int i = 0; i < LIMIT_READS; i++)
		turn_land(&a.turn, HALF);
	assert_int_equal(reads_begun(&root, HALF), 2);
	turn_land(&a.turn, HALF);
	assert_int_equal(reads_begun(&root, HALF), 1);
	turn_ready(&b.turn, true);
	assert_int_equal(reads_begun(&root, HALF), 2); /* b's reads; a's do not count for it */
	assert_int_equal(reads_begun(&root, HALF), 0);
	turn_land(&a.turn, HALF);
	turn_land(&a.turn, HALF);
	turn_land(&b.turn, HALF);
	turn_land(&b.turn, HALF);
	turn_ready(&a.turn, false);
	assert_int_equal(reads_begun(&root, 5 * HALF), 1); /* one read, however large */
	turn_land(&b.turn, 5 * HALF);
	turn_ready(&b.turn, false);
	assert_null(turn_next(&root));
	turn_leave(&b.turn);
	turn_leave(&run[1]);
	turn_leave(&user[1]);
	turn_ready(&a.turn, true);
	assert_int_equal(reads_begun(&root, HALF), LIMIT_READS);
}

/* Two feeds of one run: reads of one that hang neither block the other nor count for their user. */
static void hanging_reads_are_counted_apart(void **state)
{
	struct turn root = {0}, user[2] = {0}, run[2] = {0};
	struct leaf hung, well, other;

	(void)state;
	for (int i = 0; i < 2; i++) {
		turn_join(&user[i], &root);
		turn_join(&run[i], &user[i]);
	}
	leaf_join(&hung, &run[0], HALF);
	leaf_join(&other, &run[1], HALF);
	turn_ready(&other.turn, false);
	assert_int_equal(reads_begun(&root, HALF), 2);
	leaf_join(&well, &run[0], HALF);
	assert_null(turn_next(&root)); /* the user is at its limit */
	turn_ready(&hung.turn, false);
	turn_apart(&hung.turn, true);
	assert_int_equal(reads_begun(&root, HALF), 2);
	assert_int_equal(well.turn.flying, 2 * HALF);
	turn_land(&hung.turn, HALF);
	turn_ready(&well.turn, false);
	assert_int_equal(reads_begun(&root, HALF), 0); /* the user has them in flight */
	turn_land(&well.turn, HALF);
	turn_ready(&hung.turn, true);
	assert_int_equal(reads_begun(&root, HALF), 1);
	assert_int_equal(hung.turn.flying, 2 * HALF);
	turn_apart(&hung.turn, false);
	turn_land(&hung.turn, HALF);
	turn_land(&hung.turn, HALF);
	turn_land(&well.turn, HALF);
	assert_int_equal(user[0].flying, 0);
}

/* ---- feeds ---- */

enum { WINDOW = 1025, DEPTH = 64 };

static uint64_t shard_tokens[] = {1024 * 100 + 1};
static uint64_t first_window[2];
static struct table table = {.window_tokens = WINDOW,
	.stride = 1024,
	.shards = 1,
	.tokens = shard_tokens,
	.first_window = first_window};
static const struct feed_source source = {.table = &table, .owner = &table};

struct session {
	struct feed *feed;
	struct ring ring;
	void *meta, *data;
};

static struct session session_of(uint32_t stream, uint32_t id, uint64_t user, uint64_t run,
	uint32_t slots, uint32_t rows, uint64_t samples)
{
	struct cursor_source sources[] = {{"d", 1, 100, 1, 64, 64, ORDER_NONE, false, 0, 0, 0}};
	struct cursor identity = {.stream = "s",
			      .seed = 1,
			      .seq_len = 1024,
			      .extra = 1,
			      .stride = 1024,
			      .samples = samples},
		      cursor;
	struct session s = {0};
	struct ring_geometry g;
	struct fault fault;

	table_number(&table);
	assert_true(cursor_begin(&cursor, &identity, sources, 1, NULL, 0, &fault));
	assert_true(ring_geometry(&g, slots, rows, WINDOW, 2, 0, &fault));
	s.meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	s.data = aligned_alloc(RING_PAGE, g.data_bytes);
	assert_true(s.meta && s.data);
	memset(s.meta, 0, g.meta_bytes);
	memset(s.data, 0, RING_PAGE);
	ring_format(&s.ring, &g, s.meta, s.data);
	s.feed = feed_new(&cursor, &(struct feed_options){.id = id,
					   .stream = stream,
					   .user = user,
					   .run = run,
					   .world = 1,
					   .ring = s.ring,
					   .source = &source});
	assert_non_null(s.feed);
	cursor_free(&cursor);
	return s;
}

static struct session session_make(
	uint32_t id, uint64_t user, uint64_t run, uint32_t slots, uint32_t rows, uint64_t samples)
{
	return session_of(id, id, user, run, slots, rows, samples);
}

static void session_free(struct session *s)
{
	feed_free(s->feed);
	free(s->meta);
	free(s->data);
}

/* An engine and its reads, which end in order. */
struct rig {
	struct engine *engine;
	struct engine_actions out;
	uint64_t tag[LIMIT_READS];
	unsigned first, reads;
	unsigned begun[LEAVES + 1]; /* by feed */
};

static struct rig *rig_make(void)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->engine = engine_new(DEPTH);
	assert_non_null(r->engine);
	return r;
}

static void step(struct rig *r, struct engine_event event)
{
	r->out.count = 0;
	engine_step(r->engine, &event, &r->out);
	for (unsigned i = 0; i < r->out.count; i++) {
		if (r->out.action[i].type != ENGINE_READ)
			continue;
		r->tag[(r->first + r->reads++) % LIMIT_READS] = r->out.action[i].tag;
		r->begun[r->out.action[i].id]++;
	}
}

static void attach(struct rig *r, const struct session *s, uint32_t id)
{
	step(r, (struct engine_event){.type = ENGINE_ATTACH, .id = id, .feed = s->feed});
}

static void oldest_done(struct rig *r)
{
	assert_true(r->reads > 0);
	uint64_t tag = r->tag[r->first];

	r->first = (r->first + 1) % LIMIT_READS;
	r->reads--;
	step(r, (struct engine_event){.type = ENGINE_DONE, .id = UINT32_MAX, .tag = tag});
}

static void rig_free(struct rig *r, uint32_t feeds)
{
	for (uint32_t id = 0; id < feeds; id++)
		step(r, (struct engine_event){.type = ENGINE_DETACH, .id = id});
	while (r->reads > 0)
		oldest_done(r);
	engine_free(r->engine);
	free(r);
}

/* The other feed's first batch is ready after a thousandth of the huge one. */
static void a_huge_batch_does_not_block_other_feeds(void **state)
{
	struct rig *r = rig_make();
	struct session hog = session_make(0, 0, 0, 2, LIMIT_MICRO_BATCH, 0);
	struct session polite = session_make(1, 1, 0, 8, 8, 0);
	unsigned done = 0;

	(void)state;
	attach(r, &hog, 0);
	attach(r, &polite, 1);
	for (; ring_published(&polite.ring) < 8; done++)
		oldest_done(r);
	assert_int_equal(r->begun[1], 64);
	assert_true(done <= 3 * DEPTH + 64);
	assert_int_equal(ring_published(&hog.ring), 0);
	rig_free(r, 2);
	session_free(&hog);
	session_free(&polite);
}

/* The many sessions of one user together get as much as the single session of another. */
static void sessions_of_one_user_share_its_part(void **state)
{
	struct rig *r = rig_make();
	struct session *s = calloc(LEAVES + 1, sizeof(*s));
	unsigned sum = 0;

	(void)state;
	assert_non_null(s);
	for (uint32_t id = 0; id < LEAVES; id++)
		s[id] = session_make(id, 1000, id % 7, 2, 64, 0);
	s[LEAVES] = session_make(LEAVES, 1001, 0, 1, 20000, 0);
	for (uint32_t id = 0; id <= LEAVES; id++)
		attach(r, &s[id], id);
	memset(r->begun, 0, sizeof(r->begun));
	for (unsigned i = 0; i < 20000; i++)
		oldest_done(r);
	for (uint32_t id = 0; id < LEAVES; id++)
		sum += r->begun[id];
	assert_in_range(r->begun[LEAVES], 9900, 10100);
	assert_in_range(sum, 9900, 10100);
	rig_free(r, LEAVES + 1);
	for (uint32_t id = 0; id <= LEAVES; id++)
		session_free(&s[id]);
	free(s);
}

/* A feed whose client must be woken for each small batch pays for that. */
static void wake_ups_are_paid_for(void **state)
{
	const uint64_t row = TURN_ROW + WINDOW * 2;
	struct rig *r = rig_make();
	struct session eager = session_make(0, 0, 0, 256, 1, 0);
	struct session steady = session_of(0, 1, 1, 0, 1, 20000, 0);
	unsigned wakes = 0;

	(void)state;
	attach(r, &eager, 0);
	attach(r, &steady, 1);
	for (unsigned i = 0; i < 4000; i++) {
		uint64_t published = ring_published(&eager.ring);

		atomic_store(&eager.ring.control->released, published);
		atomic_store(&eager.ring.control->client_waits, published + 1);
		oldest_done(r);
		for (unsigned a = 0; a < r->out.count; a++)
			wakes += r->out.action[a].type == ENGINE_WAKE;
		step(r, (struct engine_event){.type = ENGINE_KICK, .id = 0});
	}
	assert_true(wakes > 400);
	/* Not exact: a debt is forgiven while no other feed could read. */
	assert_in_range(r->begun[0] * row + wakes * TURN_WAKE, r->begun[1] * row / 3 * 2,
		r->begun[1] * row / 2 * 3);
	rig_free(r, 2);
	session_free(&eager);
	session_free(&steady);
}

/* Zeros take time, too: a huge batch of padding is not made in one step. */
static void padding_comes_in_pieces(void **state)
{
	struct rig *r = rig_make();
	struct session hog = session_make(0, 0, 0, 1, 8192, 1);
	unsigned steps = 0;

	(void)state;
	attach(r, &hog, 0);
	for (; r->out.more; steps++)
		step(r, (struct engine_event){.type = ENGINE_PUMP, .id = UINT32_MAX});
	assert_true(steps > 16);
	oldest_done(r);
	assert_int_equal(ring_published(&hog.ring), 1);
	rig_free(r, 1);
	session_free(&hog);
}

static void read_of(struct rig *r, uint32_t id)
{
	while (r->tag[r->first] >> 32 != id) {
		r->tag[(r->first + r->reads) % LIMIT_READS] = r->tag[r->first];
		r->first = (r->first + 1) % LIMIT_READS;
	}
	oldest_done(r);
}

static void set_slow(struct rig *r, uint32_t stream, bool slow)
{
	step(r, (struct engine_event){.type = ENGINE_SLOW, .id = stream, .slow = slow});
}

/* Three streams, one after the other: a stream whose storage hangs leaves reads to later ones. */
static void a_hanging_stream_leaves_reads_to_other_streams(void **state)
{
	struct rig *r = rig_make();
	struct session s[4];

	(void)state;
	for (uint32_t id = 0; id < 4; id++)
		s[id] = session_make(id, 0, id, 4, 64, 0);
	attach(r, &s[0], 0);
	assert_int_equal(r->begun[0], DEPTH - DEPTH / 4);
	attach(r, &s[1], 1); /* before it is known to be slow */
	assert_int_equal(r->begun[1], DEPTH / 4 * 3 / 4);
	attach(r, &s[3], 3); /* likewise: it leaves a read, too */
	assert_int_equal(r->begun[3], 3);
	for (unsigned i = 0; i < 100; i++)
		read_of(r, 3);
	assert_true(r->begun[3] > 100);
	step(r, (struct engine_event){.type = ENGINE_DETACH, .id = 3});
	for (unsigned i = 100; i < r->begun[3]; i++)
		read_of(r, 3);
	set_slow(r, 0, true);
	for (unsigned i = 0; i < 200; i++) {
		read_of(r, 1);
		assert_true(r->begun[1] > i); /* it always has a read */
	}
	attach(r, &s[2], 2);
	set_slow(r, 1, true);
	for (unsigned i = 0; i < 100; i++)
		read_of(r, 2);
	assert_true(r->begun[2] > 100);
	/* Slow streams that answer sometimes share a quarter. */
	for (unsigned i = r->begun[0]; i > DEPTH / 4; i--)
		read_of(r, 0);
	assert_int_equal(r->begun[0], DEPTH - DEPTH / 4);
	for (unsigned i = 0; i < 10; i++)
		read_of(r, 1);
	assert_true(r->begun[2] > 120); /* it gets the reads that came back */
	set_slow(r, 0, false);
	assert_true(r->begun[0] > DEPTH - DEPTH / 4);
	set_slow(r, 1, false);
	rig_free(r, 3);
	for (uint32_t id = 0; id < 4; id++)
		session_free(&s[id]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_user_of_many_sessions_gets_one_share),
		cmocka_unit_test(runs_of_a_user_share_its_part),
		cmocka_unit_test(bytes_are_shared_not_rows),
		cmocka_unit_test(debts_are_paid_even_if_another_leaves),
		cmocka_unit_test(large_rows_do_not_fill_the_queue),
		cmocka_unit_test(hanging_reads_are_counted_apart),
		cmocka_unit_test(a_hanging_stream_leaves_reads_to_other_streams),
		cmocka_unit_test(a_huge_batch_does_not_block_other_feeds),
		cmocka_unit_test(sessions_of_one_user_share_its_part),
		cmocka_unit_test(wake_ups_are_paid_for),
		cmocka_unit_test(padding_comes_in_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
