/* The engine, event by event: planning, waiting, ends. tests/sim does the same with random
 * events. */
#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/feeds.h"

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

/* A feed of local shards begins with the fewest batches of 16 rows or more. After the first batch
 * is published, it fills the ring. A feed that reads from a store fills it at once. */
static void a_feed_begins_with_few_rows(void **state)
{
	static const struct {
		struct shape shape;
		unsigned first, rest, published;
	} cases[] = {
		{{.slots = 8, .rows = 6}, 18, 30, 3},
		{{.slots = 3, .rows = 20}, 20, 40, 1},
		{{.slots = 8, .rows = 6, .queue = 1}, 48, 0, 8},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig *r = rig_make(DEPTH);
		struct session s = session_make(&cases[i].shape);

		engine_store_depth(r->engine, DEPTH);
		assert_int_equal(attach(r, &s, 0), cases[i].first);
		for (uint64_t row = cases[i].first - 1; row > 0; row--)
			assert_int_equal(done(r, row, 0, false), 0);
		assert_int_equal(done(r, 0, 0, false), cases[i].rest);
		assert_int_equal(published(&s), cases[i].published);
		leave(r, &s, 0);
		rig_free(r);
	}
}

static void depth_bounds_the_reads(void **state)
{
	struct rig *r = rig_make(3);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 4});

	(void)state;
	assert_int_equal(attach(r, &s, 0), 3);
	uint64_t tag = r->out.action[1].tag;

	assert_int_equal(done(r, tag, 0, false), 1); /* one is done, one more begins */
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

/* A turn has as many rows as its quantum pays for, whatever the size of a slot. */
static void two_feeds_take_turns(void **state)
{
	struct rig *r = rig_make(5); /* one stream may have 4 of them */
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

static void a_full_list_continues_with_pump(void **state)
{
	struct rig *r = rig_make(LIMIT_READS);
	struct session s = session_make(&(struct shape){.slots = 1, .rows = 360});
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
	assert_int_equal(published(&s), 1);
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
	assert_int_equal(kick(r, 0), 0); /* nothing was released */
	assert_int_equal(ring_release(&s.ring, 1), 0);
	assert_int_equal(ring_release(&s.ring, 2), 2);
	assert_int_equal(kick(r, 0), 2);
	assert_int_equal(count(r, ENGINE_READ), 2);
	read_all(r);
	assert_int_equal(published(&s), 6);
	leave(r, &s, 0);
	rig_free(r);
}

/* It asks for no wake-up before half of its ring is free, but a sixteenth is found by a look. */
static void a_slow_client_keeps_the_ring_nearly_full(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 32, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	for (unsigned i = 1; i <= 3; i++) {
		assert_int_equal(ring_release(&s.ring, 2 * i - 1), 0);
		assert_int_equal(look(r), 0);
		assert_int_equal(ring_release(&s.ring, 2 * i), 0);
		assert_int_equal(look(r), 2);
		read_all(r);
		assert_int_equal(atomic_load(&s.ring.header->wake_at), 2 * i + 16);
	}
	assert_int_equal(look(r), 0);
	leave(r, &s, 0);
	rig_free(r);
}

/* A small ring could be empty before the next look: its client is asked for each slot. */
static void a_slow_client_of_a_small_ring_asks_for_each_slot(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 8, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(ring_release(&s.ring, 5), 4);
	assert_int_equal(
		kick(r, 0), 5); /* a fast one: it has released more than it was asked for */
	read_all(r);
	for (unsigned released = 9; released < 12; released++) {
		assert_int_equal(ring_release(&s.ring, released), released);
		assert_int_equal(kick(r, 0), released == 9 ? 4 : 1);
		read_all(r);
	}
	leave(r, &s, 0);
	rig_free(r);
}

/* A look comes before the client has reached wake_at. That does not make it a slow one. */
static void a_look_does_not_make_a_client_slow(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 8, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(ring_release(&s.ring, 3), 0);
	assert_int_equal(look(r), 3);
	read_all(r);
	assert_int_equal(atomic_load(&s.ring.header->wake_at), 3 + 4);
	leave(r, &s, 0);
	rig_free(r);
}

/* Clients take batches at once, so all feeds want all reads. Three of them alone may have that many
 * in flight. Now and then one of them pauses. */
static void feeds_of_one_run_get_equal_shares(void **state)
{
	enum { FEEDS = 8, STEPS = 100000 };
	struct rig *r = rig_make(LIMIT_READS);
	struct session s[FEEDS];
	uint64_t least = UINT64_MAX, most = 0;

	(void)state;
	for (uint32_t i = 0; i < FEEDS; i++) {
		s[i] = session_make(&(struct shape){.id = i, .slots = 64, .rows = 8});
		attach(r, &s[i], i);
	}
	for (unsigned n = 0; n < STEPS; n++) {
		uint64_t id = r->reading[0] >> 32;

		if (r->out.more) {
			pump(r);
			continue;
		}
		assert_true(r->reads > 0);
		done(r, r->reading[0], 0, false);
		if (n % 8000 / 1000 != id && ring_release(&s[id].ring, published(&s[id])) != 0)
			kick(r, (uint32_t)id);
	}
	for (uint32_t i = 0; i < FEEDS; i++) {
		least = published(&s[i]) < least ? published(&s[i]) : least;
		most = published(&s[i]) > most ? published(&s[i]) : most;
	}
	assert_in_range(most, least, least + least / 4);
	for (uint32_t i = 0; i < FEEDS; i++)
		leave(r, &s[i], i);
	rig_free(r);
}

/* Looks are worth their time while clients release slots. */
static void clients_are_active_that_released_slots(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 4, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	tick(r);
	assert_false(r->out.active);
	assert_int_equal(ring_release(&s.ring, 1), 0);
	tick(r);
	assert_true(r->out.active);
	tick(r);
	assert_false(r->out.active);
	leave(r, &s, 0);
	rig_free(r);
}

/*
 * A client may wait for a slot while it keeps others. Then half of the ring is never free, and one
 * free slot must be enough. The client sends a byte when it begins to wait.
 */
static void a_waiting_client_gets_a_single_free_slot(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 4, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	ring_release(&s.ring, 1); /* took four, keeps three */
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
	assert_int_equal(done(r, tag[0], 0, false), 0); /* not the slot that it waits for */
	assert_int_equal(done(r, tag[1], 0, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_WAKE);
	assert_int_equal(r->out.action[0].id, 3);
	assert_int_equal(done(r, tag[2], 0, false), 0);
	ring_wait_end(&s.ring);
	leave(r, &s, 3);
	rig_free(r);
}

static void a_tick_finds_a_lost_wake_up(void **state)
{
	struct rig *r = rig_make(DEPTH);
	struct session s = session_make(&(struct shape){.slots = 2, .rows = 1});

	(void)state;
	attach(r, &s, 0);
	read_all(r);
	assert_int_equal(tick(r), 0);
	assert_int_equal(tick(r), 0);
	assert_int_equal(ring_release(&s.ring, 2), 1); /* and the byte is lost */
	assert_int_equal(tick(r), 0);		       /* it might still be on its way */
	assert_int_equal(feed_counters(s.feed).lost_wakes, 0);
	assert_int_equal(tick(r), 2);
	assert_int_equal(feed_counters(s.feed).lost_wakes, 1);
	leave(r, &s, 0);
	rig_free(r);
}

/* ---- ends ---- */

static void batches_end_with_the_stream(void **state)
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

/* Thirteen samples over two ranks with micro-batches of three. Each rank gets three batches; the
 * last has one sample on rank 0, none on rank 1. */
static void all_ranks_get_the_same_number_of_batches(void **state)
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

static void nothing_is_served_past_the_end(void **state)
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

/* ---- the end, and waiting for it ---- */

/* A last batch of padding has no read to wait for. It still wakes a client that waits. */
static void a_batch_of_padding_wakes_the_client(void **state)
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

static void gone_comes_after_the_last_read(void **state)
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
	assert_int_equal(done(r, tag[0], 5, true), 0); /* no retry after the detach */
	assert_int_equal(done(r, tag[1], 5, false), 0);
	assert_int_equal(done(r, tag[2], 0, false), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	assert_int_equal(r->out.action[0].id, 4);
	assert_ptr_equal(r->out.action[0].feed, s.feed);
	assert_int_equal(published(&s), 0);
	session_free(&s);
	rig_free(r);
}

static void events_of_unknown_feeds_are_ignored(void **state)
{
	struct rig *r = rig_make(DEPTH);

	(void)state;
	assert_int_equal(kick(r, 9), 0);
	assert_int_equal(detach(r, 9), 0);
	assert_int_equal(kick(r, UINT32_MAX), 0);
	assert_int_equal(tick(r), 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_attach_fills_the_ring),
		cmocka_unit_test(a_feed_begins_with_few_rows),
		cmocka_unit_test(depth_bounds_the_reads),
		cmocka_unit_test(slots_are_published_in_order),
		cmocka_unit_test(two_feeds_take_turns),
		cmocka_unit_test(a_full_list_continues_with_pump),
		cmocka_unit_test(a_full_ring_sleeps_until_half_is_free),
		cmocka_unit_test(a_slow_client_keeps_the_ring_nearly_full),
		cmocka_unit_test(a_slow_client_of_a_small_ring_asks_for_each_slot),
		cmocka_unit_test(a_look_does_not_make_a_client_slow),
		cmocka_unit_test(feeds_of_one_run_get_equal_shares),
		cmocka_unit_test(clients_are_active_that_released_slots),
		cmocka_unit_test(a_waiting_client_gets_a_single_free_slot),
		cmocka_unit_test(a_waiting_client_is_woken_once),
		cmocka_unit_test(a_tick_finds_a_lost_wake_up),
		cmocka_unit_test(batches_end_with_the_stream),
		cmocka_unit_test(all_ranks_get_the_same_number_of_batches),
		cmocka_unit_test(nothing_is_served_past_the_end),
		cmocka_unit_test(a_batch_of_padding_wakes_the_client),
		cmocka_unit_test(gone_comes_after_the_last_read),
		cmocka_unit_test(events_of_unknown_feeds_are_ignored),
	};

	return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
