/*
 * The parts of the order against the vectors of its specification: hashing, the bijection, weights
 * and segments. tests/prove (mixes, orders) shows that chains of segments keep their shares and
 * exact counts.
 */
#include "proto/order.h"
#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/order_chain.h"
#include "tests/unit/order_plain.h"

/* ---- hashing and permute ---- */

static void hashes_match_the_vectors(void **state)
{
	(void)state;
	assert_int_equal(order_derive_n(0, NULL, 0), UINT64_C(0xe220a8397b1dcdaf));
	assert_int_equal(hash_of("web"), UINT64_C(0x5ea0e11948721ef1));
	assert_int_equal(order_derive(42, 2, hash_of("web"), 0), UINT64_C(0x3894ef7bc1893f4));
}

static uint64_t digest_of(const char *const *path, const uint64_t *tokens, size_t n)
{
	uint64_t digest = order_digest_begin(n);

	for (size_t i = 0; i < n; i++)
		digest = order_digest_add(digest, path[i], tokens[i]);
	return digest;
}

static void digests_match_the_vectors(void **state)
{
	const char *web[] = {"a.bin", "b.bin", "c.bin"}, *code[] = {"x.bin", "y.bin"};
	uint64_t web_tokens[] = {50001, 30000, 5}, code_tokens[] = {9000, 12345};

	(void)state;
	assert_int_equal(digest_of(web, web_tokens, 3), UINT64_C(0xb3960afe8c9f9ec6));
	assert_int_equal(digest_of(code, code_tokens, 2), UINT64_C(0xe6b64183fa5596cf));
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

static void check_bijection(uint64_t n, uint64_t key)
{
	uint8_t *seen = calloc(1, n);

	assert_non_null(seen);
	for (uint64_t x = 0; x < n; x++) {
		uint64_t y = order_permute(n, key, x);

		assert_true(y < n && !seen[y]);
		seen[y] = 1;
		assert_int_equal(order_unpermute(n, key, y), x);
	}
	free(seen);
}

static void permute_is_a_bijection(void **state)
{
	(void)state;
	for (uint64_t n = 1; n <= 300; n++)
		for (uint64_t key = 0; key < 3; key++)
			check_bijection(n, key);
	for (uint64_t n = 4; n <= UINT64_C(1) << 18; n *= 4)
		for (uint64_t around = n - 1; around <= n + 1; around++)
			check_bijection(around, order_derive(n));
}

static void check_there_and_back(uint64_t n, uint64_t key, uint64_t x)
{
	uint64_t y = order_permute(n, key, x);

	assert_true(y < n);
	assert_int_equal(order_unpermute(n, key, y), x);
	assert_int_equal(order_permute(n, key, order_unpermute(n, key, x)), x);
}

static void permute_has_an_inverse_at_any_size(void **state)
{
	struct rng rng = {1};

	(void)state;
	for (unsigned i = 0; i < 100000; i++) {
		uint64_t n = rng_wide(&rng) | 1;

		check_there_and_back(n, rng_next(&rng), rng_below(&rng, n));
	}
	for (uint64_t x = UINT64_MAX - 1; x > UINT64_MAX - 1000; x--)
		check_there_and_back(UINT64_MAX, 7, x);
}

/* Squares and their neighbours above 2^52, where the root of a double is off by one and the digits
 * would not fit. */
static void permute_is_exact_where_doubles_round(void **state)
{
	struct rng rng = {2};

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t root = (UINT64_C(1) << 26) +
				rng_below(&rng, (UINT64_C(1) << 32) - (UINT64_C(1) << 26));

		for (int off = -1; off <= 1; off++) {
			uint64_t n = root * root + (uint64_t)off;

			check_there_and_back(n, i, n - 1);
			check_there_and_back(n, i, rng_below(&rng, n));
		}
	}
}

static void permute_takes_the_exact_root(void **state)
{
	/* n = r² + 1 needs a = r + 1, n = r² needs r. In doubles both are equal. */
	static const uint64_t roots[] = {
		94906267, 94906266, 134217729, 1000000007, 3037000500, 4294967295};

	(void)state;
	for (size_t i = 0; i < COUNT(roots); i++)
		for (int off = -1; off <= 1; off++) {
			uint64_t n = roots[i] * roots[i] + (uint64_t)off;

			for (uint64_t x = 0; x < 50; x++)
				assert_int_equal(order_permute(n, 3, x),
					plain_permute(n, plain_root(n), 3, x));
		}
}

/* ---- weights ---- */

static void check_units(const double *weights, uint32_t n, const uint64_t *expected)
{
	struct fault fault;
	uint64_t units[8];

	assert_true(order_units(weights, n, units, &fault));
	assert_memory_equal(units, expected, n * sizeof(*units));
}

static void units_match_the_vectors(void **state)
{
	(void)state;
	check_units((double[]){.7, .25, .05}, 3, (uint64_t[]){3006477107, 1073741824, 214748365});
	check_units((double[]){1, 1, 1}, 3, (uint64_t[]){1431655766, 1431655765, 1431655765});
	check_units((double[]){1, 0, 3}, 3, (uint64_t[]){1073741824, 0, 3221225472});
	check_units((double[]){1}, 1, (uint64_t[]){4294967296});
	check_units((double[]){1, 1e-9}, 2, (uint64_t[]){4294967292, 4});
}

static void unusable_weights_are_refused(void **state)
{
	static const struct {
		double weights[3];
		int index;
	} cases[] = {
		{{1, NAN, 1}, 1},
		{{1, 1, INFINITY}, 2},
		{{-1, 1, 1}, 0},
		{{1, -1e-300, 1}, 1},
		{{0, 0, 0}, FAULT_NO_INDEX},
		{{1e308, 1e308, 1}, FAULT_NO_INDEX},
		{{1, 1e-12, 1}, 1},
	};
	uint64_t units[3];
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_false(order_units(cases[i].weights, 3, units, &fault));
		assert_int_equal(fault.code, FAULT_ARGUMENT);
		assert_int_equal(fault.index, cases[i].index);
	}
}

static void units_sum_to_2_to_the_32(void **state)
{
	struct fault fault;
	struct rng rng = {3};

	(void)state;
	for (unsigned i = 0; i < 2000; i++) {
		double weights[LIMIT_DATASETS];
		uint64_t units[LIMIT_DATASETS], sum = 0;
		uint32_t n = 1 + (uint32_t)rng_below(&rng, LIMIT_DATASETS);

		for (uint32_t d = 0; d < n; d++)
			weights[d] = (double)(1 + rng_below(&rng, 1000000)) *
				     pow(10, (double)(i % 40) - 20);
		assert_true(order_units(weights, n, units, &fault));
		for (uint32_t d = 0; d < n; d++)
			sum += units[d];
		assert_int_equal(sum, ORDER_UNITS);
	}
}

/* ---- the mix ---- */

static void split_matches_the_vectors(void **state)
{
	static const uint32_t dataset[] = {0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0};
	static const uint64_t ordinal[] = {0, 0, 1, 2, 3, 1, 4, 5, 6, 0, 2, 7};
	struct chain c = {0};

	(void)state;
	chain_add(&c, 0, (double[]){.7, .25, .05}, 3);
	for (uint64_t j = 0; j < 12; j++) {
		uint32_t d;
		uint64_t k, back;

		order_split(c.segment[0], j, &d, &k);
		assert_int_equal(d, dataset[j]);
		assert_int_equal(k, ordinal[j]);
		assert_true(order_join(c.segment[0], d, k, &back));
		assert_int_equal(back, j);
	}
	chain_free(&c);
}

static void a_second_segment_matches_the_vectors(void **state)
{
	struct chain c = {0};

	(void)state;
	chain_add(&c, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&c, 2048, (double[]){.5, .3, .2}, 3);
	assert_memory_equal(c.segment[1]->base, ((uint64_t[]){1434, 512, 102}), 24);
	assert_memory_equal(
		c.segment[1]->phase + 1, ((uint64_t[]){1356305375, 429496320, 429496727}), 24);
	chain_free(&c);

	/* With a fourth dataset of weight 0, whose base in the vector is 0. */
	chain_add(&c, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&c, 2048, (double[]){.5, .3, .2, 0}, 4);
	assert_memory_equal(c.segment[1]->base, ((uint64_t[]){1434, 512, 102, 0}), 32);
	assert_memory_equal(
		c.segment[1]->phase + 1, ((uint64_t[]){1356305375, 429496320, 429496727}), 24);
	chain_free(&c);
}

static void join_refuses_ordinals_that_are_never_served(void **state)
{
	struct chain c = {0};
	uint64_t j;

	(void)state;
	chain_add(&c, 0, (double[]){.7, 0, .3}, 3);
	chain_add(&c, 1024, (double[]){.7, 0, .3}, 3);
	assert_false(order_join(c.segment[0], 1, 0, &j));
	assert_false(order_join(c.segment[0], 3, 0, &j));
	assert_false(order_join(c.segment[0], 0, UINT64_MAX, &j));
	assert_false(order_join(c.segment[1], 0, c.segment[1]->base[0] - 1, &j));
	assert_true(order_join(c.segment[1], 0, c.segment[1]->base[0], &j));
	chain_free(&c);
}

static void same_weights_again_change_nothing(void **state)
{
	struct rng rng = {7};

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		struct chain plain = {0}, noisy = {0};
		uint32_t n = 1 + (uint32_t)rng_below(&rng, 20);
		double weights[64];
		uint64_t start = 0;

		random_weights(&rng, weights, n);
		chain_add(&plain, 0, weights, n);
		for (unsigned again = 0; again < 8; again++) {
			chain_add(&noisy, start, weights, n);
			start += LIMIT_BLOCK * (1 + (rng_wide(&rng) >> 20));
		}
		const struct order_segment *last = noisy.segment[7];

		for (uint64_t j = 0; j < 500; j++) {
			uint32_t d[2];
			uint64_t k[2];

			order_split(plain.segment[0], last->start + j, &d[0], &k[0]);
			order_split(last, j, &d[1], &k[1]);
			assert_int_equal(d[0], d[1]);
			assert_int_equal(k[0], k[1]);
		}
		chain_free(&plain);
		chain_free(&noisy);
	}
}

static void invalid_segments_are_refused(void **state)
{
	struct fault fault;
	struct chain c = {0};
	uint64_t units[] = {ORDER_UNITS / 2, ORDER_UNITS / 2}, none[] = {0, 0},
		 over[] = {UINT64_MAX, 1};
	uint64_t base[] = {0, 0}, phase[] = {0, ORDER_UNITS};

	(void)state;
	chain_add(&c, 0, (double[]){1, 1}, 2);
	chain_add(&c, 1024, (double[]){1, 1}, 2);
	assert_null(order_segment_next(c.segment[1], 1024, units, 2));
	assert_null(order_segment_next(c.segment[1], 1025, units, 2));
	assert_null(order_segment_next(c.segment[1], 2048, units, 1));
	assert_null(order_segment_first(none, 2));
	assert_null(order_segment_first(over, 2));
	assert_null(order_segment_load(0, units, base, phase, 2, &fault));
	assert_string_equal(fault.field, "phase");
	assert_null(order_segment_load(1, units, base, base, 2, &fault));
	assert_string_equal(fault.field, "start");
	phase[1] = ORDER_UNITS - 1;
	struct order_segment *fine = order_segment_load(0, units, base, phase, 2, &fault);

	assert_non_null(fine);
	order_segment_free(fine);
	chain_free(&c);
}

static void copies_are_equal(void **state)
{
	struct fault fault;
	struct chain c = {0};

	(void)state;
	chain_add(&c, 0, (double[]){3, 2, 1, 7, 1}, 5);
	chain_add(&c, 5120, (double[]){3, 0, 1, 5, 1}, 5);
	struct order_segment *copy = order_segment_copy(c.segment[1]);
	struct order_segment *loaded = order_segment_load(
		5120, c.segment[1]->units, c.segment[1]->base, c.segment[1]->phase, 5, &fault);

	assert_non_null(copy);
	assert_non_null(loaded);
	for (uint64_t j = 0; j < 3000; j++) {
		uint32_t d[3];
		uint64_t k[3];

		order_split(c.segment[1], j, &d[0], &k[0]);
		order_split(copy, j, &d[1], &k[1]);
		order_split(loaded, j, &d[2], &k[2]);
		assert_true(d[0] == d[1] && d[0] == d[2] && k[0] == k[1] && k[0] == k[2]);
	}
	order_segment_free(copy);
	order_segment_free(loaded);
	chain_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hashes_match_the_vectors),
		cmocka_unit_test(digests_match_the_vectors),
		cmocka_unit_test(permute_matches_the_vectors),
		cmocka_unit_test(permute_is_a_bijection),
		cmocka_unit_test(permute_has_an_inverse_at_any_size),
		cmocka_unit_test(permute_is_exact_where_doubles_round),
		cmocka_unit_test(permute_takes_the_exact_root),
		cmocka_unit_test(units_match_the_vectors),
		cmocka_unit_test(unusable_weights_are_refused),
		cmocka_unit_test(units_sum_to_2_to_the_32),
		cmocka_unit_test(split_matches_the_vectors),
		cmocka_unit_test(a_second_segment_matches_the_vectors),
		cmocka_unit_test(join_refuses_ordinals_that_are_never_served),
		cmocka_unit_test(same_weights_again_change_nothing),
		cmocka_unit_test(invalid_segments_are_refused),
		cmocka_unit_test(copies_are_equal),
	};

	return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
