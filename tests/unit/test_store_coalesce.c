/* Neighbouring ranges are merged, never across a gap, a megabyte or an object. */
#include "daemon/store/coalesce.h"

#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct span span(uint64_t object, uint64_t at, size_t n)
{
	return (struct span){.object = object, .at = at, .n = n};
}

static void test_merged(void **state)
{
	struct span spans[] = {span(1, 8192, 4096), span(1, 0, 4096),
		span(1, 12288 + COALESCE_GAP_BYTES, 4096), span(2, 0, 4096),
		span(1, 16384 + 2 * COALESCE_GAP_BYTES + 1, 4096), span(1, 0, 4096)};

	(void)state;
	assert_int_equal(coalesce(spans, 6), 3);
	for (int i = 0; i < 4; i++) /* equal, with gaps up to the most */
		assert_int_equal(spans[i].group, 0);
	assert_int_equal(spans[4].group, 1);
	assert_int_equal(spans[5].object, 2);
	assert_int_equal(spans[5].group, 2);
}

static void test_not_above_a_megabyte(void **state)
{
	struct span spans[300];

	(void)state;
	for (unsigned i = 0; i < 300; i++)
		spans[i] = span(1, 4096 * i, 4096);
	assert_int_equal(coalesce(spans, 300), 2);
	assert_int_equal(spans[255].group, 0);
	assert_int_equal(spans[256].group, 1);
	spans[0] = span(1, 0, 8 * COALESCE_MOST_BYTES); /* one range may be larger */
	assert_int_equal(coalesce(spans, 1), 1);
	spans[0] = span(1, UINT64_MAX - 4096, 4096);
	spans[1] = span(1, UINT64_MAX - 8192, 4096);
	assert_int_equal(coalesce(spans, 2), 1);
	assert_int_equal(coalesce(spans, 0), 0);
}

static void test_random_spans_keep_the_bounds(void **state)
{
	struct rng rng = {4711};

	(void)state;
	for (int round = 0; round < 2000; round++) {
		struct span spans[64];
		unsigned n = 1 + (unsigned)(rng_next(&rng) % 64), groups;

		for (unsigned i = 0; i < n; i++)
			spans[i] = span(rng_next(&rng) % 3, rng_next(&rng) % 3000000,
				1 + rng_next(&rng) % 70000);
		groups = coalesce(spans, n);
		assert_int_equal(spans[n - 1].group, groups - 1);
		for (unsigned i = 0, from = 0; i < n; i++) {
			if (i > 0 && spans[i].group != spans[i - 1].group)
				from = i;
			assert_true(spans[i].object == spans[from].object);
			assert_true(
				spans[i].at + spans[i].n - spans[from].at <= COALESCE_MOST_BYTES);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merged),
		cmocka_unit_test(test_not_above_a_megabyte),
		cmocka_unit_test(test_random_spans_keep_the_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
