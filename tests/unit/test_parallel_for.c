/*
 * parallel_for() calls the function once for each index, and returns the least index that failed.
 */
#include "daemon/catalog/parallel_for.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 5000 };

struct job {
	_Atomic unsigned done[MOST];
	bool (*fails)(uint64_t i);
};

static bool work(void *context, uint64_t i)
{
	struct job *job = context;

	atomic_fetch_add(&job->done[i], 1);
	if (i % 7 == 0)
		sched_yield(); /* so that later ones come first */
	return !job->fails(i);
}

static bool none(uint64_t i)
{
	(void)i;
	return false;
}

static bool some(uint64_t i)
{
	return i == 301 || i >= 700;
}

static bool first(uint64_t i)
{
	return i == 0;
}

static void expect(uint64_t n, bool (*fails)(uint64_t), uint64_t least)
{
	struct job job = {.fails = fails};

	assert_int_equal(parallel_for(n, work, &job), least);
	for (uint64_t i = 0; i < n; i++)
		assert_in_range(job.done[i], i <= least && i < n ? 1 : 0, 1);
	for (uint64_t i = n; i < MOST; i++)
		assert_int_equal(job.done[i], 0);
}

static void all_is_done_once(void **state)
{
	(void)state;
	for (uint64_t n = 0; n < 300; n += 37)
		expect(n, none, n);
	expect(MOST, none, MOST);
}

static void the_least_failure_is_returned(void **state)
{
	(void)state;
	for (int round = 0; round < 50; round++) {
		expect(MOST, some, 301);
		expect(1000, first, 0);
		expect(301, some, 301);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_is_done_once),
		cmocka_unit_test(the_least_failure_is_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
