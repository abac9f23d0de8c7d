/* The layout of rings. fuzz_ring and fuzz_client break headers and words; tests/memory runs two
 * threads. */
#include "proto/ring.h"

#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define GIB	     LIMIT_CHUNK_BYTES

/* ---- geometry ---- */

static bool fits(
	struct ring_geometry *g, uint64_t slots, uint64_t rows, uint64_t window, uint64_t bytes)
{
	struct ring_geometry more;
	struct fault fault;
	bool ok = ring_geometry(g, slots, rows, window, bytes, 0, &fault);

	/* Documents need room in the meta memory, and have no other bound. */
	assert_int_equal(ring_geometry(&more, slots, rows, window, bytes, true, &fault), ok);
	if (ok) {
		assert_int_equal(more.data_bytes, g->data_bytes);
		assert_true(more.meta_bytes >=
			    g->meta_bytes - RING_PAGE + slots * rows * (1 + window) * 4);
		assert_true(more.meta_bytes <=
			    g->meta_bytes + RING_PAGE + slots * rows * (1 + window) * 4);
	}
	return ok;
}

/* Slots follow each other, aligned, none across a chunk; the control page comes after them. */
static void check_layout(const struct ring_geometry *g)
{
	uint64_t end = 0;

	for (uint64_t s = 0; s < g->slots; s++) {
		uint64_t at = ring_slot_offset(g, s);

		assert_true(at >= end && at % 64 == 0);
		end = at + g->slot_bytes;
		assert_int_equal(at / GIB, (end - 1) / GIB);
		assert_int_equal(ring_slot_offset(g, s + 3 * (uint64_t)g->slots), at);
	}
	assert_true(g->control_at >= end && g->control_at % RING_PAGE == 0);
	assert_int_equal(g->data_bytes, g->control_at + RING_PAGE);
	assert_true(g->meta_bytes % RING_PAGE == 0);
	assert_true(
		g->meta_bytes >= RING_PAGE + g->slots * (sizeof(struct ring_slot) +
								g->rows * sizeof(struct ring_row)));
}

static void slots_are_aligned_and_do_not_overlap(void **state)
{
	struct rng rng = {21};
	struct ring_geometry g;
	unsigned fine = 0;

	(void)state;
	for (unsigned i = 0; i < 3000; i++) {
		uint64_t slots = 1 + rng_below(&rng, i % 4 ? 40 : LIMIT_SLOTS),
			 rows = 1 + (rng_wide(&rng) & 0xffff);
		uint64_t window = 1 + (rng_wide(&rng) & (GIB - 1)),
			 bytes = 2 + 2 * rng_below(&rng, 2);

		if (!fits(&g, slots, rows, window, bytes))
			continue;
		fine++;
		assert_int_equal(g.slot_bytes, rows * window * bytes);
		check_layout(&g);
	}
	assert_true(fine > 300);
}

static void no_slot_crosses_a_gibibyte(void **state)
{
	struct ring_geometry g;

	(void)state;
	assert_true(fits(&g, 3, 1, GIB / 4, 4)); /* exactly 1 GiB: one per chunk */
	assert_int_equal(g.slot_bytes, GIB);
	assert_int_equal(ring_slot_offset(&g, 2), 2 * GIB);
	check_layout(&g);
	assert_true(fits(&g, 7, 1, GIB / 6, 4)); /* two thirds of a chunk: one per chunk */
	assert_int_equal(ring_slot_offset(&g, 1), GIB);
	check_layout(&g);
	assert_true(fits(&g, 4096, 1, GIB / 4, 4));
	check_layout(&g);
}

static void impossible_geometries_are_refused(void **state)
{
	static const struct {
		uint64_t slots, rows, window, bytes;
		const char *field, *text;
	} cases[] = {
		{2, 8, GIB / 32 + 1, 4, "micro_batch", "1073741856 bytes a slot; must be at most"},
		{LIMIT_SLOTS, 1025, 1, 2, "slots", "4096 slots × 1025 rows = 4198400 rows"},
		{0, 1, 1, 2, "slots", "0; must be 1 to 4096"},
		{LIMIT_SLOTS + 1, 1, 1, 2, "slots", "4097; must be 1 to 4096"},
		{1, 0, 1, 2, "micro_batch", "0"},
		{1, LIMIT_MICRO_BATCH + 1, 1, 2, "micro_batch", "65537"},
		{1, 1, 0, 2, "window", "0"},
		{1, 1, UINT64_MAX, 2, "window", "18446744073709551615"},
		{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, "slots", ""},
	};
	struct ring_geometry g;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_false(ring_geometry(&g, cases[i].slots, cases[i].rows, cases[i].window,
			cases[i].bytes, 0, &fault));
		assert_int_equal(fault.code, FAULT_ATTACH);
		assert_string_equal(fault.field, cases[i].field);
		assert_non_null(strstr(fault.text, cases[i].text));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_aligned_and_do_not_overlap),
		cmocka_unit_test(no_slot_crosses_a_gibibyte),
		cmocka_unit_test(impossible_geometries_are_refused),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
