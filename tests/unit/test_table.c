/*
 * The window table against counting: every window of small random tables, and numbers near 2^63.
 * system/test_order_vectors.py has the vectors.
 */
#include "proto/table.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHARDS = 12, TOKENS = 90 };

struct fixture {
	struct table table;
	uint64_t tokens[SHARDS], first[SHARDS + 1];
};

static void number(struct fixture *f, const uint64_t *tokens, uint64_t shards, uint64_t window,
	uint64_t stride)
{
	memcpy(f->tokens, tokens, shards * sizeof(*tokens));
	f->table = (struct table){.window_tokens = window,
		.stride = stride,
		.shards = shards,
		.tokens = f->tokens,
		.first_window = f->first};
	table_number(&f->table);
}

static struct order_dataset order_of(const struct table *table, bool slide)
{
	return (struct order_dataset){.name_hash = order_name_hash("math", 4),
		.windows = table->windows,
		.shuffle = ORDER_NONE,
		.slide = slide};
}

/* Numbers near 2^63: no step may wrap. */
static void test_numbers_near_2_to_the_63(void **state)
{
	struct fixture f;
	struct order_dataset order;
	uint64_t tokens = UINT64_C(1) << 62, shard, offset, first, count;

	(void)state;
	number(&f, (const uint64_t[]){tokens, tokens}, 2, 2, 1);
	assert_true(f.table.windows == 2 * (tokens - 1));
	order = order_of(&f.table, false);
	table_locate(&f.table, &order, 42, 0, 2 * (tokens - 1) - 1, &shard, &offset);
	assert_true(shard == 1 && offset == tokens - 2);
	table_holding(&f.table, &order, 42, 0, 1, tokens - 1, &first, &count);
	assert_int_equal(count, 1);
	assert_true(first == f.table.windows - 1);
	assert_int_equal(table_unserved(&f.table), 0);
	number(&f, (const uint64_t[]){tokens}, 1, 2, UINT64_MAX);
	assert_int_equal(f.table.windows, 1);
	assert_true(table_unserved(&f.table) == tokens - 2);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Which windows contain each token and each range of tokens, by listing all of them. */
static void check_table(const struct table *t, bool slide, uint64_t epoch)
{
	static unsigned char holds[SHARDS * TOKENS][SHARDS][TOKENS]; /* [window][shard][token] */
	struct order_dataset order = order_of(t, slide);
	uint64_t unserved = 0;

	assert_true(t->windows <= SHARDS * TOKENS);
	memset(holds, 0, t->windows * sizeof(holds[0]));
	for (uint64_t w = 0; w < t->windows; w++) {
		uint64_t shard, offset;

		table_locate(t, &order, 42, epoch, w, &shard, &offset);
		assert_true(shard < t->shards && offset + t->window_tokens <= t->tokens[shard]);
		memset(&holds[w][shard][offset], 1, t->window_tokens);
	}
	for (uint64_t s = 0; s < t->shards; s++)
		for (uint64_t token = 0; token < t->tokens[s]; token++) {
			uint64_t first, count, expected = 0;

			table_holding(t, &order, 42, epoch, s, token, &first, &count);
			for (uint64_t w = 0; w < t->windows; w++) {
				if (holds[w][s][token] != (w >= first && w < first + count))
					fail_msg("window %zu, token %zu of shard %zu", (size_t)w,
						(size_t)token, (size_t)s);
				expected += holds[w][s][token];
			}
			assert_int_equal(count, expected);
			unserved += expected == 0;
		}
	if (!slide)
		assert_int_equal(table_unserved(t), unserved);
	for (uint64_t s = 0; s < t->shards; s++)
		for (uint64_t token = 0; token < t->tokens[s]; token++)
			for (uint64_t tokens = 0; tokens <= t->tokens[s] + 1 - token; tokens++) {
				uint64_t first, count;

				table_touching(
					t, &order, 42, epoch, s, token, tokens, &first, &count);
				for (uint64_t w = 0; w < t->windows; w++) {
					bool touches = tokens > 0 &&
						       memchr(&holds[w][s][token], 1,
							       least(tokens, t->tokens[s] - token));

					assert_int_equal(touches, w >= first && w < first + count);
				}
			}
}

static void test_random_tables_match_counting(void **state)
{
	struct rng rng = {.state = 3};

	(void)state;
	for (int i = 0; i < 100; i++) {
		uint64_t tokens[SHARDS], shards = 1 + rng_below(&rng, SHARDS);
		struct fixture f;

		for (uint64_t s = 0; s < shards; s++)
			tokens[s] =
				rng_below(&rng, 3) ? rng_below(&rng, TOKENS) : rng_below(&rng, 4);
		number(&f, tokens, shards, 1 + rng_below(&rng, 20), 1 + rng_below(&rng, 30));
		check_table(&f.table, i & 1, rng_below(&rng, 5));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_near_2_to_the_63),
		cmocka_unit_test(test_random_tables_match_counting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
