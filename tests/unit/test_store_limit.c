/* The in-flight limit of a bucket: slow start, growth by one a round, halving. */
#include "daemon/store/limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void answers(struct limit *limit, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		limit_answered(limit, limit->now);
}

static void test_slow_start_reaches_the_most(void **state)
{
	struct limit limit = limit_new(128);

	(void)state;
	assert_int_equal(limit.now, LIMIT_START);
	answers(&limit, 100);
	assert_int_equal(limit.now, LIMIT_START + 100);
	answers(&limit, 1000);
	assert_int_equal(limit.now, 128);
	assert_int_equal(limit_new(3).now, 3);
}

static void test_an_unused_limit_does_not_grow(void **state)
{
	struct limit limit = limit_new(128);

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		limit_answered(&limit, 1);
	assert_int_equal(limit.now, LIMIT_START);
}

static void test_overload_halves_once_a_second(void **state)
{
	struct limit limit = limit_new(128);

	(void)state;
	answers(&limit, 56);
	assert_int_equal(limit.now, 64);
	limit_overload(&limit, 5000);
	limit_overload(&limit, 5999);
	assert_int_equal(limit.now, 32);
	limit_overload(&limit, 6000);
	assert_int_equal(limit.now, 16);
	for (int i = 1; i < 10; i++)
		limit_overload(&limit, 6000 + 1000 * i);
	assert_int_equal(limit.now, LIMIT_LEAST);
}

static void test_growth_after_overload_is_one_a_round(void **state)
{
	struct limit limit = limit_new(128);

	(void)state;
	limit_overload(&limit, 0);
	assert_int_equal(limit.now, 4);
	answers(&limit, 3);
	assert_int_equal(limit.now, 4);
	answers(&limit, 1);
	assert_int_equal(limit.now, 5);
	answers(&limit, 5);
	assert_int_equal(limit.now, 6);
}

static void test_a_small_limit_stays_in_its_bounds(void **state)
{
	struct limit limit = limit_new(2);

	(void)state;
	limit_overload(&limit, 0);
	assert_int_equal(limit.now, 2);
	answers(&limit, 50);
	assert_int_equal(limit.now, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slow_start_reaches_the_most),
		cmocka_unit_test(test_an_unused_limit_does_not_grow),
		cmocka_unit_test(test_overload_halves_once_a_second),
		cmocka_unit_test(test_growth_after_overload_is_one_a_round),
		cmocka_unit_test(test_a_small_limit_stays_in_its_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
