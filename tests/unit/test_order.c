/*
 * The functions of the order that `tokctl plan` does not show, against the vectors of its
 * specification and at their edges, up to 2^64. system/test_order_vectors.py has the other vectors;
 * tests/prove shows that chains of segments keep their shares and exact counts.
 */
#include "proto/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/order_plain.h"
#include "tests/unit/rng.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- hashing and permute ---- */

static void hashes_match_the_vectors(void **state)
{
	(void)state;
	assert_int_equal(order_derive_n(0, NULL, 0), UINT64_C(0xe220a8397b1dcdaf));
	assert_int_equal(order_name_hash("web", 3), UINT64_C(0x5ea0e11948721ef1));
	assert_int_equal(
		order_derive(42, 2, order_name_hash("web", 3), 0), UINT64_C(0x3894ef7bc1893f4));
}

static void permute_matches_the_vectors(void **state)
{
	static const struct {
		uint64_t n;
		unsigned count;
		uint64_t head[10];
	} vectors[] = {
		{10, 10, {0, 7, 9, 8, 5, 3, 4, 1, 2, 6}},
		{65537, 5, {40482, 6588, 63700, 63687, 26586}},
		{1000003, 5, {126770, 273815, 323932, 242574, 507617}},
		{UINT64_C(1000000000000), 4,
			{452799140793, 480236514164, 581263406330, 351288628086}},
	};
	uint64_t key = order_derive(1);

	(void)state;
	for (size_t v = 0; v < COUNT(vectors); v++)
		for (unsigned x = 0; x < vectors[v].count; x++)
			assert_int_equal(order_permute(vectors[v].n, key, x), vectors[v].head[x]);
}

/* Squares and their neighbours. Above 2^52 the root of a double is off by one: r² needs r and r² +
 * 1 needs r + 1. */
static void permute_takes_the_exact_root(void **state)
{
	struct rng rng = {2};

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t root = (UINT64_C(1) << 26) +
				rng_below(&rng, (UINT64_C(1) << 32) - (UINT64_C(1) << 26));

		for (int off = -1; off <= 1; off++) {
			uint64_t n = root * root + (uint64_t)off, x = rng_below(&rng, n);
			uint64_t y = order_permute(n, i, x);

			assert_int_equal(y, plain_permute(n, plain_root(n), i, x));
			assert_int_equal(order_unpermute(n, i, y), x);
		}
	}
	for (uint64_t x = UINT64_MAX - 1; x > UINT64_MAX - 1000; x--)
		assert_int_equal(
			order_unpermute(UINT64_MAX, 7, order_permute(UINT64_MAX, 7, x)), x);
}

/* ---- weights and the mix ---- */

/* A dataset that is appended with weight 0 changes nothing. */
static void segments_match_the_vectors(void **state)
{
	static const uint32_t dataset[] = {0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0};
	static const uint64_t ordinal[] = {0, 0, 1, 2, 3, 1, 4, 5, 6, 0, 2, 7};
	uint64_t first[3], second[4];
	struct fault fault;

	(void)state;
	assert_true(order_units((double[]){.7, .25, .05}, 3, first, &fault));
	assert_true(order_units((double[]){.5, .3, .2, 0}, 4, second, &fault));
	struct order_segment *s = order_segment_first(first, 3);

	assert_non_null(s);
	for (uint64_t j = 0; j < 12; j++) {
		uint32_t d;
		uint64_t k, back;

		order_split(s, j, &d, &k);
		assert_int_equal(d, dataset[j]);
		assert_int_equal(k, ordinal[j]);
		assert_true(order_join(s, d, k, &back));
		assert_int_equal(back, j);
	}
	for (uint32_t n = 3; n <= 4; n++) {
		struct order_segment *next = order_segment_next(s, 2048, second, n);

		assert_non_null(next);
		assert_memory_equal(next->base, ((uint64_t[]){1434, 512, 102, 0}), 8 * n);
		assert_memory_equal(
			next->phase + 1, ((uint64_t[]){1356305375, 429496320, 429496727}), 24);
		order_segment_free(next);
	}
	order_segment_free(s);
}

static void positions_of_ranks_saturate(void **state)
{
	(void)state;
	assert_int_equal(order_rank_position(UINT64_MAX, 0, 0, 1, 1), UINT64_MAX);
	assert_int_equal(order_rank_position(UINT64_MAX - 1, 0, 1, 2, 1), UINT64_MAX);
	assert_int_equal(order_rank_position(UINT64_MAX - 1, 1, 1, 2, 1), UINT64_MAX);
	assert_int_equal(
		order_rank_position(5, UINT64_MAX, LIMIT_WORLD - 1, LIMIT_WORLD, LIMIT_MICRO_BATCH),
		UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hashes_match_the_vectors),
		cmocka_unit_test(permute_matches_the_vectors),
		cmocka_unit_test(permute_takes_the_exact_root),
		cmocka_unit_test(segments_match_the_vectors),
		cmocka_unit_test(positions_of_ranks_saturate),
	};

	return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
