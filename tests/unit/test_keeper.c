/*
 * The keeper serves users in turns. The first job waits until all others are queued, so the order
 * is exact.
 */
#include "daemon/control/keeper.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { JOBS = 64, PATIENCE_MS = 60000 };

struct test_job {
	struct keeper_job job;
	char name;
	bool again; /* gives another job of the same user while it runs */
};

static struct keeper *keeper;
static struct test_job jobs[JOBS];
static unsigned given, served;
static char order[JOBS + 1];
static sem_t begun, gate;

static void give(char name, bool again);

static void work(struct keeper_job *job)
{
	struct test_job *test = (struct test_job *)job;

	if (test->name == '-') {
		sem_post(&begun);
		sem_wait(&gate);
		return;
	}
	order[served++] = test->name;
	if (test->again && given < 16)
		give(test->name, true);
}

static void done(struct keeper_job *job)
{
	(void)job;
}

static void give(char name, bool again)
{
	struct test_job *test = &jobs[given++];

	*test = (struct test_job){
		.job = {.uid = (uid_t)name, .work = work, .done = done}, .name = name};
	test->again = again;
	keeper_give(keeper, &test->job);
}

static void assert_served(const char *queued, char again, const char *want)
{
	struct fault fault;
	uv_loop_t loop;
	unsigned left;

	given = served = 0;
	memset(order, 0, sizeof(order));
	assert_int_equal(sem_init(&begun, 0, 0), 0);
	assert_int_equal(sem_init(&gate, 0, 0), 0);
	assert_int_equal(uv_loop_init(&loop), 0);
	keeper = keeper_start(&loop, &fault);
	assert_non_null(keeper);
	give('-', false);
	sem_wait(&begun);
	for (const char *name = queued; *name; name++)
		give(*name, *name == again);
	sem_post(&gate);
	assert_true(keeper_wait(keeper, PATIENCE_MS));
	assert_string_equal(order, want);
	keeper_close(keeper);
	assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
	assert_true(keeper_stop(keeper, PATIENCE_MS, &left));
	assert_int_equal(uv_loop_close(&loop), 0);
}

static void three_users_take_turns(void **state)
{
	(void)state;
	assert_served("AAAABBBBCC", 0, "ABCABCABAB");
	assert_served("ABABABCDCD", 0, "ABCDABCDAB");
}

static void jobs_of_one_user_stay_in_order(void **state)
{
	(void)state;
	assert_served("AAA", 0, "AAA");
}

static void a_user_that_gives_one_job_at_a_time_does_not_go_first(void **state)
{
	(void)state;
	assert_served("ABBCC", 'A', "ABCABCAAAAAAAAA");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_users_take_turns),
		cmocka_unit_test(jobs_of_one_user_stay_in_order),
		cmocka_unit_test(a_user_that_gives_one_job_at_a_time_does_not_go_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
