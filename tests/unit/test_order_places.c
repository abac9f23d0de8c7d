/*
 * The whole order, from position to window and back: the vectors of its specification, random
 * configurations up to 2^64, and finite streams. tests/prove covers runs with edits, and their
 * ranks.
 */
#include "proto/order.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/order_chain.h"

/* ---- the whole function, on the example of the specification ---- */

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
	e->dataset[WEB] =
		(struct order_dataset){hash_of("web"), 1249, 64, 64, ORDER_GLOBAL, false, {0}};
	e->dataset[CODE] =
		(struct order_dataset){hash_of("code"), 332, 8, 3, ORDER_BLOCK, false, {0}};
	e->dataset[MATH] =
		(struct order_dataset){hash_of("math"), 46, 64, 64, ORDER_NONE, true, {0}};
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

/* Shard and token offset of a window, by counting, for three shards. */
static uint64_t locate(const struct example *e, const struct order_place *p, unsigned *shard)
{
	uint64_t window = p->window;
	const uint64_t *tokens = example_tokens[p->dataset];

	for (*shard = 0; window >= order_shard_windows(tokens[*shard], 65, 64); ++*shard)
		window -= order_shard_windows(tokens[*shard], 65, 64);
	uint64_t slack = order_shard_slack(tokens[*shard], 65, 64);

	return window * 64 + order_slide(&e->dataset[p->dataset], 42, p->epoch, *shard, slack);
}

static void shard_windows_match_the_vectors(void **state)
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

static void places_match_the_vectors(void **state)
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

static void blocks_match_the_vectors(void **state)
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

	struct order_dataset web = {hash_of("web"), 1249, 2000, 1, ORDER_BLOCK, false, {0}};

	for (uint64_t at = 0; at < 4; at++)
		assert_int_equal(order_window(&web, 42, 0, at), wide[at]);
}

static void slides_match_the_vectors(void **state)
{
	struct order_dataset math = {hash_of("math"), 93, 64, 64, ORDER_NONE, true, {0}};
	uint64_t b = order_shard_slack(3000, 65, 64), c = order_shard_slack(3030, 65, 64);

	(void)state;
	assert_int_equal(order_slide(&math, 42, 0, 1, b), 26);
	assert_int_equal(order_slide(&math, 42, 0, 2, c), 15);
	assert_int_equal(order_slide(&math, 42, 1, 1, b), 32);
	assert_int_equal(order_slide(&math, 42, 1, 2, c), 7);
	math.slide = false;
	assert_int_equal(order_slide(&math, 42, 1, 2, c), 0);
}

static void one_dataset_matches_the_vectors(void **state)
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

static void epochs_match_the_vectors(void **state)
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

static uint64_t share_of(double part)
{
	return (uint64_t)(part * (double)ORDER_UNITS);
}

static void make_part(struct order_dataset *d, uint64_t of, double from, double to)
{
	assert_true(order_part(d, of, share_of(from), share_of(to)));
}

static void check_windows(const struct order *o, const uint64_t *windows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		check_place(o, i, WEB, windows[i]);
}

static void parts_match_the_vectors(void **state)
{
	static const double from[] = {0, .9}, to[] = {.9, 1};
	static const uint64_t digest[] = {
		UINT64_C(0x9bd4f3240491e0e), UINT64_C(0x1260dd35d5e348f5)};
	static const uint64_t y[2][5] = {{0, 1, 63, 64, 1087}, {0, 1, 63, 64, 160}},
			      window[2][5] = {{768, 769, 831, 960, 127},
				      {1216, 1217, 606, 607, 575}},
			      n[] = {1088, 161};
	static const uint64_t first[] = {860, 878, 471, 150, 1007},
			      second[] = {571, 566, 1222, 1240, 523};
	struct example e;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct order_dataset d = {.shuffle = ORDER_NONE};

		make_part(&d, 1249, from[i], to[i]);
		assert_int_equal(d.windows, n[i]);
		assert_int_equal(order_derive(UINT64_C(0xb3960afe8c9f9ec6), share_of(from[i]),
					 share_of(to[i])),
			digest[i]);
		for (unsigned k = 0; k < 5; k++)
			assert_int_equal(order_window(&d, 42, 0, y[i][k]), window[i][k]);
	}
	example_make(&e);
	make_part(&e.dataset[WEB], 1249, 0, .9);
	chain_add(&e.chain, 0, (double[]){1}, 1);
	example_link(&e);
	check_windows(&e.order, first, 5);
	chain_free(&e.chain);

	example_make(&e);
	e.dataset[WEB].name_hash = hash_of("held-out");
	make_part(&e.dataset[WEB], 1249, .9, 1);
	e.chain.segment[0] = order_segment_first(&e.dataset[WEB].windows, 1);
	e.chain.segments = 1;
	e.order.end = e.dataset[WEB].windows;
	e.order.exact_end = true;
	example_link(&e);
	check_windows(&e.order, second, 5);
	chain_free(&e.chain);
}

static void mixed_parts_match_the_vectors(void **state)
{
	static const struct {
		uint64_t position;
		struct order_place place;
	} vectors[] = {
		{0, {WEB, 0, 812}},
		{1, {CODE, 0, 93}},
		{2, {WEB, 0, 405}},
		{1000, {WEB, 0, 801}},
		{1024, {WEB, 0, 220}},
		{5000, {WEB, 2, 1048}},
		{UINT64_C(1000000000000), {CODE, 1562500000, 127}},
	};
	struct example e;

	(void)state;
	example_make(&e);
	make_part(&e.dataset[WEB], 1249, 0, .9);
	make_part(&e.dataset[CODE], 332, .25, .75);
	assert_int_equal(e.dataset[CODE].windows, 192);
	chain_add(&e.chain, 0, (double[]){.7, .3}, 2);
	example_link(&e);
	for (size_t i = 0; i < COUNT(vectors); i++) {
		struct order_place p;
		uint64_t back;

		assert_true(order_at(&e.order, vectors[i].position, &p));
		assert_int_equal(p.dataset, vectors[i].place.dataset);
		assert_int_equal(p.epoch, vectors[i].place.epoch);
		assert_int_equal(p.window, vectors[i].place.window);
		assert_true(order_when(&e.order, &p, &back) && back == vectors[i].position);
	}
	chain_free(&e.chain);
}

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

static void a_share_is_the_shortest_decimal(void **state)
{
	static const double shares[] = {0, 1, .5, .9, .999, .001, 1. / 3, 1e-9, .123456789};
	static const char *const texts[] = {
		"0", "1", "0.5", "0.9", "0.999", "0.001", NULL, NULL, NULL};
	char text[ORDER_SHARE_BYTES];

	(void)state;
	for (size_t i = 0; i < COUNT(shares); i++) {
		order_share_text(share_of(shares[i]), text);
		assert_int_equal(share_of(strtod(text, NULL)), share_of(shares[i]));
		assert_true(!texts[i] || strcmp(text, texts[i]) == 0);
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
	struct order_dataset part = d;
	uint64_t lo = rng_below(rng, ORDER_UNITS), hi = lo + 1 + rng_below(rng, ORDER_UNITS - lo);

	return rng_below(rng, 2) && order_part(&part, d.windows, lo, hi) ? part : d;
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

/* An order of later segments only, as in a cursor: positions before them are unknown, the others
 * are the same. */
static void a_cursor_knows_only_its_own_segments(void **state)
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

static void windows_that_are_never_served_are_not_found(void **state)
{
	struct example e;
	struct order_place p = {.dataset = WEB};
	uint64_t position;

	(void)state;
	example_make(&e);
	chain_add(&e.chain, 0, (double[]){.7, .25, .05}, 3);
	chain_add(&e.chain, 2048, (double[]){0, .5, .5}, 3);
	example_link(&e);
	p.epoch = 1; /* 1434 samples of 1249 windows: the second epoch is cut short */
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

static void samples_ends_a_stream_without_changing_its_order(void **state)
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
		cmocka_unit_test(shard_windows_match_the_vectors),
		cmocka_unit_test(places_match_the_vectors),
		cmocka_unit_test(blocks_match_the_vectors),
		cmocka_unit_test(slides_match_the_vectors),
		cmocka_unit_test(one_dataset_matches_the_vectors),
		cmocka_unit_test(epochs_match_the_vectors),
		cmocka_unit_test(parts_match_the_vectors),
		cmocka_unit_test(mixed_parts_match_the_vectors),
		cmocka_unit_test(the_parts_of_a_path_cover_it_once),
		cmocka_unit_test(a_share_is_the_shortest_decimal),
		cmocka_unit_test(when_is_the_inverse_of_at),
		cmocka_unit_test(a_cursor_knows_only_its_own_segments),
		cmocka_unit_test(windows_that_are_never_served_are_not_found),
		cmocka_unit_test(samples_ends_a_stream_without_changing_its_order),
		cmocka_unit_test(epochs_serve_every_window_so_many_times),
		cmocka_unit_test(blocks_are_bijections),
		cmocka_unit_test(positions_of_ranks_saturate),
	};

	return cmocka_run_group_tests_name("order places", tests, NULL, NULL);
}
