/* The whole order on the example of its specification, with its vectors. */
#include "proto/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/order_chain.h"

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
		cmocka_unit_test(a_share_is_the_shortest_decimal),
		cmocka_unit_test(a_cursor_knows_only_its_own_segments),
		cmocka_unit_test(windows_that_are_never_served_are_not_found),
		cmocka_unit_test(samples_ends_a_stream_without_changing_its_order),
	};

	return cmocka_run_group_tests_name("order vectors", tests, NULL, NULL);
}
