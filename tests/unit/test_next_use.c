/* The next use of a part of a shard is what a walk along the order finds. */
#include "daemon/engine/next_use.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

enum { DATASETS = 3, SHARDS = 3, WALK = 12000 };

static struct rng rng;

static uint64_t tokens[DATASETS][SHARDS] = {{50001, 30000, 5}, {9000, 12345}, {3000}};
static uint64_t first_window[DATASETS][SHARDS + 1];
static struct table table[DATASETS];

static void number_tables(void)
{
	static const uint64_t shards[DATASETS] = {3, 2, 1};

	for (int d = 0; d < DATASETS; d++) {
		table[d] = (struct table){.window_tokens = 65,
			.stride = 64,
			.shards = shards[d],
			.tokens = tokens[d],
			.first_window = first_window[d]};
		table_number(&table[d]);
		assert_int_equal(table[d].windows, three[d].windows);
	}
}

struct part {
	uint32_t dataset;
	uint64_t shard, token, tokens;
};

static bool needs(const struct order *order, uint64_t position, const struct part *p)
{
	struct order_place place;
	uint64_t shard, at;

	if (!order_at(order, position, &place) || place.dataset != p->dataset)
		return false;
	table_locate(&table[p->dataset], &order->dataset[p->dataset], order->seed, place.epoch,
		place.window, &shard, &at);
	return shard == p->shard && at < p->token + p->tokens && p->token < at + 65;
}

static struct part draw(void)
{
	struct part p = {.dataset = (uint32_t)rng_below(&rng, DATASETS)};

	p.shard = rng_below(&rng, table[p.dataset].shards);
	p.token = rng_below(&rng, tokens[p.dataset][p.shard]);
	p.tokens = 1 + rng_below(&rng, tokens[p.dataset][p.shard] / 3 + 1);
	return p;
}

/* Compares @n parts, each from a position of its own. Returns how many are used again. */
static unsigned compare(const struct cursor *cursor, unsigned n)
{
	struct order order = cursor_order(cursor);
	unsigned used = 0;

	while (n-- > 0) {
		struct part p = draw();
		uint64_t from = order.segment[0]->start + rng_below(&rng, 3 * LIMIT_BLOCK),
			 at = from,
			 got = next_use(&order, p.dataset, &table[p.dataset], from, p.shard,
				 p.token, p.tokens, UINT64_MAX),
			 sample = next_use(&order, p.dataset, &table[p.dataset], from, p.shard,
				 p.token, p.tokens, 4);

		while (at < from + WALK && !needs(&order, at, &p))
			at++;
		if (at < from + WALK) {
			assert_int_equal(got, at);
			used++;
		} else {
			assert_true(got >= at);
		}
		assert_true(sample >= got);
	}
	return used;
}

static void test_next_use_is_what_a_walk_finds(void **state)
{
	struct cursor c = begin();
	double weights[DATASETS] = {.2, 0, .8};
	struct fault fault;

	(void)state;
	assert_true(compare(&c, 400) > 300);
	/* A pending mix without one of the datasets. */
	assert_true(cursor_mix(&c, 2 * LIMIT_BLOCK, weights, &fault));
	assert_true(compare(&c, 400) > 100);
	assert_true(cursor_seek(&c, 5 * LIMIT_BLOCK + 7, &fault));
	assert_true(compare(&c, 300) > 50);
	cursor_free(&c);

	c = begin_as(3, 0); /* finite: the last block is scrambled in itself */
	assert_true(compare(&c, 300) > 100);
	cursor_free(&c);
}

int main(void)
{
	const char *seed = getenv("TOKEND_SEED");
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_next_use_is_what_a_walk_finds)};

	rng.state = (seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u) | 1;
	print_message("seed %llu\n", (unsigned long long)rng.state);
	number_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
