/*
 * The order against the vectors of its text, and against what it promises beyond them: bijections,
 * exact shares, and an inverse for every step.
 */
#include "proto/order.h"
#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef unsigned __int128 u128;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t hash_of(const char *name)
{
	return order_name_hash(name, strlen(name));
}

/* ---- hashing and permute ---- */

static void hashing(void **state)
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

static void digests(void **state)
{
	const char *web[] = {"a.bin", "b.bin", "c.bin"}, *code[] = {"x.bin", "y.bin"};
	uint64_t web_tokens[] = {50001, 30000, 5}, code_tokens[] = {9000, 12345};

	(void)state;
	assert_int_equal(digest_of(web, web_tokens, 3), UINT64_C(0xb3960afe8c9f9ec6));
	assert_int_equal(digest_of(code, code_tokens, 2), UINT64_C(0xe6b64183fa5596cf));
}

static void permute_vectors(void **state)
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

static void permute_inverse_at_any_size(void **state)
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

/* Squares and their neighbours above 2^52, where the root of a double is off by one: the digits
 * would not fit. */
static void permute_where_doubles_round(void **state)
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

/* As permute, with the least a that has a·a ≥ n found by bisection: agrees only if the root is
 * exact. */
static uint64_t exact_root(uint64_t n)
{
	uint64_t lo = 0, hi = UINT64_C(1) << 32;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if ((u128)mid * mid >= n)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static uint64_t scatter(uint64_t v, uint64_t k)
{
	v = (v ^ k) * UINT64_C(0xBF58476D1CE4E5B9);
	v = (v ^ v >> 32) * UINT64_C(0x94D049BB133111EB);
	return v ^ v >> 32;
}

static uint64_t plain_permute(uint64_t n, uint64_t key, uint64_t x)
{
	uint64_t a = exact_root(n), b = (uint64_t)(((u128)n + a - 1) / a);

	do {
		uint64_t h = x / a, l = x % a;

		for (unsigned r = 0; r < (n < 64 ? 16 : 8); r++) {
			uint64_t k = order_mix64(key + UINT64_C(0x9E3779B97F4A7C15) * (r + 1));

			if (r % 2 == 0)
				h = (uint64_t)((h + ((u128)scatter(l, k) * b >> 64)) % b);
			else
				l = (uint64_t)((l + ((u128)scatter(h, k) * a >> 64)) % a);
		}
		x = h * a + l;
	} while (x >= n);
	return x;
}

static void permute_takes_the_exact_root(void **state)
{
	/* n = r² + 1 needs a = r + 1, n = r² needs r; a double makes them the same. */
	static const uint64_t roots[] = {
		94906267, 94906266, 134217729, 1000000007, 3037000500, 4294967295};

	(void)state;
	for (size_t i = 0; i < COUNT(roots); i++)
		for (int off = -1; off <= 1; off++) {
			uint64_t n = roots[i] * roots[i] + (uint64_t)off;

			for (uint64_t x = 0; x < 50; x++)
				assert_int_equal(order_permute(n, 3, x), plain_permute(n, 3, x));
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

static void units_vectors(void **state)
{
	(void)state;
	check_units((double[]){.7, .25, .05}, 3, (uint64_t[]){3006477107, 1073741824, 214748365});
	check_units((double[]){1, 1, 1}, 3, (uint64_t[]){1431655766, 1431655765, 1431655765});
	check_units((double[]){1, 0, 3}, 3, (uint64_t[]){1073741824, 0, 3221225472});
	check_units((double[]){1}, 1, (uint64_t[]){4294967296});
	check_units((double[]){1, 1e-9}, 2, (uint64_t[]){4294967292, 4});
}

static void units_refused(void **state)
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

static void units_sum_up(void **state)
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

struct chain {
	struct order_segment *segment[8];
	uint32_t segments;
};

static void chain_add(struct chain *c, uint64_t start, const double *weights, uint32_t n)
{
	struct fault fault;
	uint64_t units[LIMIT_DATASETS];

	assert_true(order_units(weights, n, units, &fault));
	struct order_segment *s =
		c->segments == 0 ? order_segment_first(units, n)
				 : order_segment_next(c->segment[c->segments - 1], start, units, n);

	assert_non_null(s);
	assert_int_equal(s->start, start);
	c->segment[c->segments++] = s;
}

static void chain_free(struct chain *c)
{
	while (c->segments > 0)
		order_segment_free(c->segment[--c->segments]);
}

static void split_vectors(void **state)
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

static void second_segment_vectors(void **state)
{
	struct chain c = {0};

	(void)state;
	chain_add(&c, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&c, 2048, (double[]){.5, .3, .2}, 3);
	assert_memory_equal(c.segment[1]->base, ((uint64_t[]){1434, 512, 102}), 24);
	assert_memory_equal(
		c.segment[1]->phase + 1, ((uint64_t[]){1356305375, 429496320, 429496727}), 24);
	chain_free(&c);

	/* With a fourth dataset at weight 0 its base is the vector's (0). */
	chain_add(&c, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&c, 2048, (double[]){.5, .3, .2, 0}, 4);
	assert_memory_equal(c.segment[1]->base, ((uint64_t[]){1434, 512, 102, 0}), 32);
	assert_memory_equal(
		c.segment[1]->phase + 1, ((uint64_t[]){1356305375, 429496320, 429496727}), 24);
	chain_free(&c);
}

static void random_weights(struct rng *rng, double *weights, uint32_t n)
{
	for (uint32_t d = 0; d < n; d++)
		weights[d] = rng_below(rng, 4) == 0 ? 0 : 0.001 + (double)rng_below(rng, 1000);
	weights[rng_below(rng, n)] = 1 + (double)rng_below(rng, 1000);
}

/* A chain with random weights, datasets appended on the way. Returns how many datasets there are in
 * the end.
 */
static uint32_t random_chain(struct rng *rng, struct chain *c, uint32_t n, uint32_t segments)
{
	uint64_t start = 0;

	for (uint32_t i = 0; i < segments; i++) {
		double weights[64];

		random_weights(rng, weights, n);
		chain_add(c, start, weights, n);
		start += LIMIT_BLOCK *
			 (1 + (rng_below(rng, 5) == 0 ? rng_wide(rng) >> 16 : rng_below(rng, 5)));
		n += (uint32_t)rng_below(rng, 3);
	}
	return c->segment[segments - 1]->datasets;
}

static void check_round_trip(const struct order_segment *s, uint64_t j)
{
	uint32_t d;
	uint64_t k, back = ~j;

	order_split(s, j, &d, &k);
	assert_true(d < s->datasets && s->units[d] > 0 && k >= s->base[d]);
	assert_true(order_join(s, d, k, &back));
	assert_int_equal(back, j);
}

static void split_and_join(void **state)
{
	struct rng rng = {4};

	(void)state;
	for (unsigned i = 0; i < 300; i++) {
		struct chain c = {0};
		const struct order_segment *s;

		random_chain(&rng, &c, 1 + (uint32_t)rng_below(&rng, 40),
			1 + (uint32_t)rng_below(&rng, 5));
		s = c.segment[c.segments - 1];
		for (uint64_t j = 0; j < 200; j++) {
			check_round_trip(s, j);
			check_round_trip(s, UINT64_MAX - s->start - j);
			check_round_trip(s, rng_below(&rng, UINT64_MAX - s->start));
		}
		chain_free(&c);
	}
}

static void join_refuses_what_is_never_served(void **state)
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

/* |count − j·units/total| ≤ halves/2, without a fraction. */
static bool within_share(uint64_t count, uint64_t j, uint64_t units, uint64_t halves)
{
	u128 have = (u128)count * ORDER_UNITS, share = (u128)j * units;
	u128 off = have > share ? have - share : share - have;

	return 2 * off <= (u128)halves * ORDER_UNITS;
}

static void check_shares(const struct order_segment *s, const uint64_t *count, uint64_t j)
{
	uint64_t levels = (uint64_t)__builtin_ctz(s->padded);

	for (uint32_t d = 0; d < s->datasets; d++)
		assert_true(within_share(
			count[d], j, s->units[d], s->start == 0 ? levels : 2 * levels));
}

/* Runs through a segment: ordinals without gap or repeat, shares at every block prefix. */
static void check_segment(const struct order_segment *s, uint64_t blocks)
{
	uint64_t count[64] = {0};

	for (uint64_t j = 0; j < blocks * LIMIT_BLOCK; j++) {
		uint32_t d;
		uint64_t k;

		order_split(s, j, &d, &k);
		assert_int_equal(k, s->base[d] + count[d]);
		count[d]++;
		if ((j + 1) % LIMIT_BLOCK == 0)
			check_shares(s, count, j + 1);
	}
}

static void segments_keep_their_shares(void **state)
{
	struct rng rng = {5};

	(void)state;
	for (unsigned i = 0; i < 40; i++) {
		struct chain c = {0};

		random_chain(&rng, &c, 1 + (uint32_t)rng_below(&rng, 40), 4);
		for (uint32_t at = 0; at < c.segments; at++)
			check_segment(c.segment[at], 8);
		chain_free(&c);
	}
}

/* What the next segment carries is what the one before really served. */
static void segments_carry_exact_counts(void **state)
{
	struct rng rng = {6};

	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		struct chain c = {0};
		uint64_t count[64] = {0};
		uint32_t n = 1 + (uint32_t)rng_below(&rng, 20);
		double weights[64];

		random_weights(&rng, weights, n);
		chain_add(&c, 0, weights, n);
		random_weights(&rng, weights, n);
		chain_add(&c, 3072, weights, n);
		for (uint64_t j = 0; j < 3072; j++) {
			uint32_t d;
			uint64_t k;

			order_split(c.segment[0], j, &d, &k);
			count[d]++;
		}
		assert_memory_equal(c.segment[1]->base, count, n * sizeof(*count));
		chain_free(&c);
	}
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

static void segments_refused(void **state)
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

/* ---- the whole function, on the example of the text ---- */

struct example {
	struct chain chain;
	struct order_dataset dataset[3];
	struct order order;
};

enum { WEB, CODE, MATH };

static const uint64_t example_tokens[3][3] = {{50001, 30000, 5}, {9000, 12345}, {3000}};
static const char *const example_shard[3][3] = {
	{"a.bin", "b.bin", "c.bin"}, {"x.bin", "y.bin"}, {"z.bin"}};

static void example_make(struct example *e)
{
	memset(e, 0, sizeof(*e));
	e->dataset[WEB] = (struct order_dataset){hash_of("web"), 1249, 64, 64, ORDER_GLOBAL, false};
	e->dataset[CODE] = (struct order_dataset){hash_of("code"), 332, 8, 3, ORDER_BLOCK, false};
	e->dataset[MATH] = (struct order_dataset){hash_of("math"), 46, 64, 64, ORDER_NONE, true};
	e->order = (struct order){.seed = 42, .datasets = 3, .dataset = e->dataset};
}

static void example_link(struct example *e)
{
	e->order.segments = e->chain.segments;
	e->order.segment = (const struct order_segment *const *)e->chain.segment;
}

static void example_mixed(struct example *e)
{
	example_make(e);
	chain_add(&e->chain, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&e->chain, 2048, (double[]){.5, .3, .2}, 3);
	example_link(e);
}

static void example_epochs(struct example *e, uint64_t epochs)
{
	uint64_t units[3];

	example_make(e);
	for (unsigned d = 0; d < 3; d++) {
		units[d] = epochs * e->dataset[d].windows;
		e->order.end += units[d];
	}
	e->order.exact_end = true;
	e->chain.segment[0] = order_segment_first(units, 3);
	e->chain.segments = 1;
	assert_non_null(e->chain.segment[0]);
	example_link(e);
}

/* Shard and token offset of a window: the sums of the table, on three shards. */
static uint64_t locate(const struct example *e, const struct order_place *p, unsigned *shard)
{
	uint64_t window = p->window;
	const uint64_t *tokens = example_tokens[p->dataset];

	for (*shard = 0; window >= order_shard_windows(tokens[*shard], 65, 64); ++*shard)
		window -= order_shard_windows(tokens[*shard], 65, 64);
	uint64_t slack = order_shard_slack(tokens[*shard], 65, 64);

	return window * 64 + order_slide(&e->dataset[p->dataset], 42, p->epoch, *shard, slack);
}

static void shard_windows(void **state)
{
	(void)state;
	for (unsigned d = 0; d < 3; d++) {
		struct example e;
		uint64_t windows = 0;

		example_make(&e);
		for (unsigned s = 0; s < 3; s++)
			windows += order_shard_windows(example_tokens[d][s], 65, 64);
		assert_int_equal(windows, e.dataset[d].windows);
	}
	assert_int_equal(order_shard_windows(64, 65, 64), 0);
	assert_int_equal(order_shard_windows(65, 65, 64), 1);
	assert_int_equal(order_shard_windows(UINT64_MAX, 1, 1), UINT64_MAX);
	assert_int_equal(order_shard_slack(64, 65, 64), 0);
	assert_int_equal(order_shard_slack(65 + 63, 65, 64), 63);
	assert_int_equal(order_shard_slack(65 + 64, 65, 64), 0);
}

static const struct {
	uint64_t position;
	unsigned dataset;
	uint64_t epoch, window;
	const char *shard;
	uint64_t offset;
} places[] = {
	{0, CODE, 0, 52, "x.bin", 3328},
	{1, WEB, 0, 47, "a.bin", 3008},
	{2, CODE, 0, 266, "y.bin", 8064},
	{190, MATH, 1, 0, "z.bin", 37},
	{847, MATH, 0, 0, "z.bin", 3},
	{1023, WEB, 0, 720, "a.bin", 46080},
	{1024, WEB, 0, 512, "a.bin", 32768},
	{2047, CODE, 0, 4, "x.bin", 256},
	{2048, CODE, 1, 277, "y.bin", 8768},
	{5000, WEB, 2, 1106, "b.bin", 20800},
	{123456789, CODE, 111557, 322, "y.bin", 11648},
	{UINT64_C(10000000000000), CODE, 9036144579, 283, "y.bin", 9152},
	{UINT64_C(1) << 62, WEB, 1846151328433702, 25, "a.bin", 1600},
	{UINT64_MAX - 1023, CODE, 16668744647505598, 89, "x.bin", 5696},
};

static void place_vectors(void **state)
{
	struct example e;

	(void)state;
	example_mixed(&e);
	for (size_t i = 0; i < COUNT(places); i++) {
		struct order_place p;
		uint64_t back;
		unsigned shard;

		assert_true(order_at(&e.order, places[i].position, &p));
		assert_int_equal(p.dataset, places[i].dataset);
		assert_int_equal(p.epoch, places[i].epoch);
		assert_int_equal(p.window, places[i].window);
		assert_int_equal(locate(&e, &p, &shard), places[i].offset);
		assert_string_equal(example_shard[p.dataset][shard], places[i].shard);
		assert_true(order_when(&e.order, &p, &back));
		assert_int_equal(back, places[i].position);
	}
	chain_free(&e.chain);
}

static void block_vectors(void **state)
{
	static const uint64_t x[] = {0, 23, 24, 311, 312, 331},
			      window[] = {316, 91, 89, 14, 15, 56};
	static const uint64_t tail[] = {167, 177, 180, 182}, wide[] = {104, 389, 575, 527};
	struct example e;
	unsigned tails = 0;

	(void)state;
	example_make(&e);
	for (size_t i = 0; i < COUNT(x); i++)
		assert_int_equal(order_window(&e.dataset[CODE], 42, 0, x[i]), window[i]);
	for (uint64_t at = 0; at < 332; at++)
		if (order_window(&e.dataset[CODE], 42, 0, at) >= 328)
			assert_int_equal(at, tail[tails++]);
	assert_int_equal(tails, 4);

	struct order_dataset web = {hash_of("web"), 1249, 2000, 1, ORDER_BLOCK, false};

	for (uint64_t at = 0; at < 4; at++)
		assert_int_equal(order_window(&web, 42, 0, at), wide[at]);
}

static void slide_vectors(void **state)
{
	struct order_dataset math = {hash_of("math"), 93, 64, 64, ORDER_NONE, true};
	uint64_t b = order_shard_slack(3000, 65, 64), c = order_shard_slack(3030, 65, 64);

	(void)state;
	assert_int_equal(order_slide(&math, 42, 0, 1, b), 26);
	assert_int_equal(order_slide(&math, 42, 0, 2, c), 15);
	assert_int_equal(order_slide(&math, 42, 1, 1, b), 32);
	assert_int_equal(order_slide(&math, 42, 1, 2, c), 7);
	math.slide = false;
	assert_int_equal(order_slide(&math, 42, 1, 2, c), 0);
}

static void one_dataset_vectors(void **state)
{
	static const uint64_t windows[] = {745, 816, 1168, 411, 363};
	struct example e;

	(void)state;
	example_make(&e);
	chain_add(&e.chain, 0, (double[]){2}, 1);
	example_link(&e);
	for (uint64_t i = 0; i < COUNT(windows); i++) {
		struct order_place p;

		assert_true(order_at(&e.order, i, &p));
		assert_int_equal(p.window, windows[i]);
	}
	chain_free(&e.chain);
}

static void check_place(const struct order *o, uint64_t position, unsigned dataset, uint64_t window)
{
	struct order_place p;

	assert_true(order_at(o, position, &p));
	assert_int_equal(p.dataset, dataset);
	assert_int_equal(p.window, window);
	assert_int_equal(p.epoch, 0);
}

static void epochs_vectors(void **state)
{
	struct example e;
	struct order_place p;

	(void)state;
	example_epochs(&e, 1);
	assert_int_equal(e.order.end, 1627);
	check_place(&e.order, 0, WEB, 588);
	check_place(&e.order, 1, CODE, 297);
	check_place(&e.order, 1626, CODE, 26);
	assert_false(order_at(&e.order, 1627, &p));
	chain_free(&e.chain);
}

/* ---- there and back on random configurations ---- */

struct world {
	struct chain chain;
	struct order_dataset dataset[64];
	struct order order;
};

static struct order_dataset random_dataset(struct rng *rng, uint64_t most)
{
	static const uint32_t sizes[] = {1, 2, 3, 7, 64, 1000, UINT32_C(1) << 31};
	struct order_dataset d = {
		.name_hash = rng_next(rng),
		.windows = 1 + rng_below(rng, most),
		.block = sizes[rng_below(rng, COUNT(sizes))],
		.group = sizes[rng_below(rng, COUNT(sizes))],
		.shuffle = (enum order_shuffle)rng_below(rng, 3),
	};

	return d;
}

static void world_make(struct rng *rng, struct world *w)
{
	uint32_t segments = 1 + (uint32_t)rng_below(rng, 5);

	memset(w, 0, sizeof(*w));
	w->order.seed = rng_next(rng);
	w->order.datasets = random_chain(rng, &w->chain, 1 + (uint32_t)rng_below(rng, 6), segments);
	w->order.segments = segments;
	w->order.segment = (const struct order_segment *const *)w->chain.segment;
	w->order.dataset = w->dataset;
	for (uint32_t d = 0; d < w->order.datasets; d++)
		w->dataset[d] = random_dataset(rng, rng_below(rng, 2) ? 300 : UINT64_C(1) << 40);
	if (rng_below(rng, 4) == 0)
		w->order.end = 1 + rng_wide(rng);
}

static void check_position(const struct order *o, uint64_t position)
{
	struct order_place p;
	uint64_t back = ~position;

	if (!order_at(o, position, &p)) {
		assert_true(o->end > 0 && position >= o->end);
		return;
	}
	assert_true(p.dataset < o->datasets && p.window < o->dataset[p.dataset].windows);
	assert_true(order_when(o, &p, &back));
	assert_int_equal(back, position);
}

static void check_random_place(struct rng *rng, const struct order *o)
{
	struct order_place p = {.dataset = (uint32_t)rng_below(rng, o->datasets),
				   .epoch = rng_wide(rng)},
			   there;
	uint64_t position;

	p.window = rng_below(rng, o->dataset[p.dataset].windows);
	if (!order_when(o, &p, &position))
		return;
	assert_true(order_at(o, position, &there));
	assert_true(
		there.dataset == p.dataset && there.epoch == p.epoch && there.window == p.window);
}

static void at_and_when(void **state)
{
	struct rng rng = {8};

	(void)state;
	for (unsigned i = 0; i < 300; i++) {
		struct world w;

		world_make(&rng, &w);
		for (uint64_t at = 0; at < 300; at++) {
			uint64_t edge = w.order.segment[w.order.segments - 1]->start + 150 - at;

			check_position(&w.order, at);
			check_position(&w.order, edge);
			check_position(&w.order, rng_wide(&rng));
			check_position(&w.order, UINT64_MAX - at);
			check_random_place(&rng, &w.order);
		}
		chain_free(&w.chain);
	}
}

/* Inside what was served, a mix and new datasets move nothing. */
static void appending_moves_nothing(void **state)
{
	struct rng rng = {9};

	(void)state;
	for (unsigned i = 0; i < 50; i++) {
		struct world w;

		world_make(&rng, &w);
		struct order before = w.order;

		before.segments = 1;
		before.datasets = w.order.segment[0]->datasets;
		uint64_t until = w.order.segments > 1 ? w.order.segment[1]->start : 4096;

		for (unsigned n = 0; n < 500; n++) {
			uint64_t at = rng_below(&rng, until);
			struct order_place a = {0}, b = {0};

			assert_int_equal(order_at(&before, at, &a), order_at(&w.order, at, &b));
			assert_true(a.dataset == b.dataset && a.epoch == b.epoch &&
				    a.window == b.window);
		}
		chain_free(&w.chain);
	}
}

/* Later segments alone, as in a cursor: what lies before them is unknown, the rest is the same. */
static void a_cursor_knows_its_own_segments(void **state)
{
	struct example e;
	struct order_place p, q;
	uint64_t position;

	(void)state;
	example_mixed(&e);
	struct order late = e.order;

	late.segment++;
	late.segments--;
	assert_false(order_at(&late, 2047, &p));
	assert_true(order_at(&late, 2048, &p));
	assert_true(order_at(&e.order, 2048, &q));
	assert_true(p.dataset == q.dataset && p.epoch == q.epoch && p.window == q.window);
	assert_true(order_at(&e.order, 100, &q));
	assert_false(order_when(&late, &q, &position));
	chain_free(&e.chain);
}

static void never_served(void **state)
{
	struct example e;
	struct order_place p = {.dataset = WEB};
	uint64_t position;

	(void)state;
	example_make(&e);
	chain_add(&e.chain, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&e.chain, 2048, (double[]){0, .5, .5}, 3);
	example_link(&e);
	p.epoch = 1; /* 1434 of 1249 windows: the second epoch is cut short */
	unsigned served = 0;

	for (p.window = 0; p.window < 1249; p.window++)
		served += order_when(&e.order, &p, &position);
	assert_int_equal(served, 1434 - 1249);
	p.epoch = 2;
	p.window = 0;
	assert_false(order_when(&e.order, &p, &position));
	p.epoch = UINT64_MAX;
	assert_false(order_when(&e.order, &p, &position));
	p = (struct order_place){.dataset = CODE, .window = 332};
	assert_false(order_when(&e.order, &p, &position));
	p = (struct order_place){.dataset = 3};
	assert_false(order_when(&e.order, &p, &position));
	chain_free(&e.chain);
}

static void samples_end_without_touching_the_scramble(void **state)
{
	struct example e;
	struct order_place p, q;
	uint64_t position;

	(void)state;
	example_mixed(&e);
	struct order finite = e.order;

	finite.end = 1500;
	for (uint64_t i = 1024; i < 2048; i++) {
		assert_true(order_at(&e.order, i, &p));
		assert_int_equal(order_at(&finite, i, &q), i < 1500);
		assert_int_equal(order_when(&finite, &p, &position), i < 1500);
		if (i < 1500)
			assert_true(
				p.dataset == q.dataset && p.window == q.window && position == i);
	}
	chain_free(&e.chain);
}

/* ---- finite streams ---- */

/* A stream of `epochs` over small random datasets; some are empty. False if all are. */
static bool finite_make(struct rng *rng, struct world *w, uint64_t epochs)
{
	uint64_t units[8];

	memset(w, 0, sizeof(*w));
	w->order = (struct order){
		.seed = rng_next(rng), .exact_end = true, .segments = 1, .dataset = w->dataset};
	w->order.datasets = 1 + (uint32_t)rng_below(rng, 6);
	for (uint32_t d = 0; d < w->order.datasets; d++) {
		w->dataset[d] = random_dataset(rng, rng_below(rng, 3) ? 12 : 1500);
		if (rng_below(rng, 6) == 0)
			w->dataset[d].windows = 0;
		units[d] = epochs * w->dataset[d].windows;
		w->order.end += units[d];
	}
	if (w->order.end == 0)
		return false;
	w->chain.segment[0] = order_segment_first(units, w->order.datasets);
	w->chain.segments = 1;
	w->order.segment = (const struct order_segment *const *)w->chain.segment;
	assert_non_null(w->chain.segment[0]);
	return true;
}

static void check_exhaustively(const struct order *o, uint64_t epochs)
{
	uint8_t *seen = calloc(1, o->end);
	uint64_t served = 0;

	assert_non_null(seen);
	for (uint32_t d = 0; d < o->datasets; d++)
		for (uint64_t epoch = 0; epoch < epochs; epoch++)
			for (uint64_t window = 0; window < o->dataset[d].windows; window++) {
				struct order_place p = {d, epoch, window}, back;
				uint64_t at;

				assert_true(order_when(o, &p, &at));
				assert_true(at < o->end && !seen[at]);
				seen[at] = 1;
				served++;
				assert_true(order_at(o, at, &back));
				assert_true(back.dataset == d && back.epoch == epoch &&
					    back.window == window);
			}
	assert_int_equal(served, o->end);
	free(seen);
}

static void epochs_serve_every_window_that_often(void **state)
{
	struct rng rng = {10};

	(void)state;
	for (unsigned i = 0; i < 400; i++) {
		struct world w;
		uint64_t epochs = 1 + rng_below(&rng, 4);
		struct order_place p = {.epoch = epochs};
		uint64_t at;

		if (!finite_make(&rng, &w, epochs))
			continue;
		check_exhaustively(&w.order, epochs);
		assert_false(order_at(&w.order, w.order.end, &p));
		for (p.dataset = 0; p.dataset < w.order.datasets; p.dataset++)
			assert_false(order_when(&w.order, &p, &at));
		chain_free(&w.chain);
	}
}

/* Blocks larger than the dataset, groups of one block, tails of every length. */
static void blocks_are_bijections(void **state)
{
	(void)state;
	for (uint64_t n = 1; n <= 70; n++)
		for (uint32_t block = 1; block <= 72; block += 1 + block / 9)
			for (uint32_t group = 1; group <= 4; group++) {
				struct order_dataset d = {n, n, block, group, ORDER_BLOCK, false};
				uint8_t seen[70] = {0};

				for (uint64_t x = 0; x < n; x++) {
					uint64_t window = order_window(&d, 5, n, x);

					assert_true(window < n && !seen[window]);
					seen[window] = 1;
					assert_int_equal(order_unwindow(&d, 5, n, window), x);
				}
			}
}

/* ---- ranks ---- */

static void ranks_partition(void **state)
{
	(void)state;
	for (uint64_t world = 1; world <= 5; world++)
		for (uint64_t micro_batch = 1; micro_batch <= 4; micro_batch++) {
			uint8_t seen[5 * 4 * 6] = {0};

			for (uint64_t m = 0; m < 6; m++)
				for (uint64_t rank = 0; rank < world; rank++) {
					uint64_t first = order_rank_position(1000, m, rank, world,
								 micro_batch) -
							 1000;

					for (uint64_t row = 0; row < micro_batch; row++)
						assert_int_equal(seen[first + row]++, 0);
				}
			for (uint64_t i = 0; i < world * micro_batch * 6; i++)
				assert_int_equal(seen[i], 1);
		}
}

static void ranks_saturate(void **state)
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
		cmocka_unit_test(hashing),
		cmocka_unit_test(digests),
		cmocka_unit_test(permute_vectors),
		cmocka_unit_test(permute_is_a_bijection),
		cmocka_unit_test(permute_inverse_at_any_size),
		cmocka_unit_test(permute_where_doubles_round),
		cmocka_unit_test(permute_takes_the_exact_root),
		cmocka_unit_test(units_vectors),
		cmocka_unit_test(units_refused),
		cmocka_unit_test(units_sum_up),
		cmocka_unit_test(split_vectors),
		cmocka_unit_test(second_segment_vectors),
		cmocka_unit_test(split_and_join),
		cmocka_unit_test(join_refuses_what_is_never_served),
		cmocka_unit_test(segments_keep_their_shares),
		cmocka_unit_test(segments_carry_exact_counts),
		cmocka_unit_test(same_weights_again_change_nothing),
		cmocka_unit_test(segments_refused),
		cmocka_unit_test(copies_are_equal),
		cmocka_unit_test(shard_windows),
		cmocka_unit_test(place_vectors),
		cmocka_unit_test(block_vectors),
		cmocka_unit_test(slide_vectors),
		cmocka_unit_test(one_dataset_vectors),
		cmocka_unit_test(epochs_vectors),
		cmocka_unit_test(at_and_when),
		cmocka_unit_test(appending_moves_nothing),
		cmocka_unit_test(a_cursor_knows_its_own_segments),
		cmocka_unit_test(never_served),
		cmocka_unit_test(samples_end_without_touching_the_scramble),
		cmocka_unit_test(epochs_serve_every_window_that_often),
		cmocka_unit_test(blocks_are_bijections),
		cmocka_unit_test(ranks_partition),
		cmocka_unit_test(ranks_saturate),
	};

	return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
