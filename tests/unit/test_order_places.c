/*
 * The whole order, from position to window and back: random configurations up to 2^64, and finite
 * streams. tests/prove covers runs with edits, and their ranks.
 */
#include "proto/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/order_chain.h"
#include "tests/unit/random_part.h"

static void the_parts_of_a_path_cover_it_once(void **state)
{
	struct rng rng = {32};

	(void)state;
	for (unsigned i = 0; i < 400; i++) {
		uint64_t of = 1 + rng_below(&rng, 5000), cuts = 1 + rng_below(&rng, 9), lo = 0;
		uint8_t seen[5000] = {0};
		uint64_t all = 0;

		for (uint64_t k = 1; k <= cuts; k++) {
			uint64_t hi =
				k == cuts ? ORDER_UNITS : lo + rng_below(&rng, ORDER_UNITS - lo);
			struct order_dataset d = {.shuffle = (enum order_shuffle)(k % 3),
				.block = 1 + (uint32_t)rng_below(&rng, 100),
				.group = 1 + (uint32_t)rng_below(&rng, 9),
				.name_hash = rng_next(&rng)};
			uint64_t seed = rng_next(&rng), found = 0;

			if (hi == lo || !order_part(&d, of, lo, hi))
				continue;
			for (uint64_t x = 0; x < d.windows; x++) {
				uint64_t window = order_window(&d, seed, k, x);

				assert_true(window < of && seen[window]++ == 0);
				assert_int_equal(order_unwindow(&d, seed, k, window), x);
			}
			for (uint64_t w = 0; w < of; w++)
				found += order_unwindow(&d, seed, k, w) < UINT64_MAX;
			assert_int_equal(found, d.windows);
			all += d.windows;
			lo = hi;
		}
		assert_int_equal(all, of);
	}
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
	uint64_t lo, hi;

	random_part(rng, d.windows, &lo, &hi);
	if (rng_below(rng, 2))
		assert_true(order_part(&d, d.windows, lo, hi));
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
	assert_true(
		p.dataset < o->datasets && p.window < order_path_windows(&o->dataset[p.dataset]));
	assert_true(order_when(o, &p, &back));
	assert_int_equal(back, position);
}

/* Positions that are mapped together have the windows that each has alone. */
static void check_together(struct rng *rng, const struct order *o, uint64_t position)
{
	struct order_place together[40], p;
	uint64_t n = 1 + rng_below(rng, COUNT(together)), i;
	uint64_t found = order_at_all(o, position, n, together);

	for (i = 0; i < n && position + i >= position && order_at(o, position + i, &p); i++)
		assert_true(i < found && together[i].dataset == p.dataset &&
			    together[i].epoch == p.epoch && together[i].window == p.window);
	assert_int_equal(found, i);
}

static void check_random_place(struct rng *rng, const struct order *o)
{
	struct order_place p = {.dataset = (uint32_t)rng_below(rng, o->datasets),
				   .epoch = rng_wide(rng)},
			   there;
	uint64_t position;

	p.window = rng_below(rng, order_path_windows(&o->dataset[p.dataset]));
	if (!order_when(o, &p, &position))
		return;
	assert_true(order_at(o, position, &there));
	assert_true(
		there.dataset == p.dataset && there.epoch == p.epoch && there.window == p.window);
}

static void when_is_the_inverse_of_at(void **state)
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
			check_together(&rng, &w.order, at % 2 ? edge : UINT64_MAX - at);
			check_random_place(&rng, &w.order);
		}
		chain_free(&w.chain);
	}
}

/* ---- finite streams ---- */

/* A stream of `epochs` over small random datasets; some are empty. False: all are. */
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
			w->dataset[d] = (struct order_dataset){.shuffle = ORDER_GLOBAL};
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
			for (uint64_t window = 0; window < order_path_windows(&o->dataset[d]);
				window++) {
				struct order_place p = {d, epoch, window}, back;
				uint64_t at;

				if (order_unwindow(&o->dataset[d], o->seed, epoch, window) ==
					UINT64_MAX) {
					assert_false(order_when(o, &p, &at));
					continue;
				}
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

static void epochs_serve_every_window_so_many_times(void **state)
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
		for (unsigned j = 0; j < 100; j++)
			check_together(&rng, &w.order, rng_below(&rng, w.order.end));
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
				struct order_dataset d = {
					n, n, block, group, ORDER_BLOCK, false, {0}};
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
		cmocka_unit_test(the_parts_of_a_path_cover_it_once),
		cmocka_unit_test(when_is_the_inverse_of_at),
		cmocka_unit_test(epochs_serve_every_window_so_many_times),
		cmocka_unit_test(blocks_are_bijections),
		cmocka_unit_test(positions_of_ranks_saturate),
	};

	return cmocka_run_group_tests_name("order places", tests, NULL, NULL);
}
