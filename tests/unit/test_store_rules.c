/*
 * What no answer of a store shows within a test's time: how the pauses between GETs of one range
 * grow, and when a fault becomes final.
 */

#include "daemon/store/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static int64_t again(struct tries *tries, enum verdict_kind kind, struct retry_state state)
{
	const struct verdict verdict = {.kind = kind};

	return retry_after(tries, &verdict, &state);
}

/* A range that fails ten times in the same way; the random number is the largest one. */
static void test_pauses_and_final_faults(void **state)
{
	enum { STOP = RETRY_STOP };
	static const struct {
		enum verdict_kind kind;
		struct retry_state state;
		int64_t pause[10]; /* STOP ends the row */
	} rows[] = {
		{VERDICT_HEALS, {.listed = true},
			{100, 200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000}},
		{VERDICT_HEALS, {.retry_after_s = 50},
			{50000, 50000, 50000, 50000, 50000, 50000, 50000, 50000, 50000, 50000}},
		{VERDICT_TORN, {.listed = true},
			{100, 200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000}},
		{VERDICT_OTHER, {.listed = true}, {3751, 3751, STOP}},
		{VERDICT_OTHER, {.listed = false}, {STOP}},
		{VERDICT_FINAL, {.listed = true}, {STOP}},
		{VERDICT_TOO_LARGE, {.listed = true}, {STOP}},
		{VERDICT_DENIED, {.listed = true}, {STOP}},
		{VERDICT_DENIED, {.listed = true, .proven = true},
			{100, 200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000}},
		{VERDICT_UNTRUSTED, {.listed = true}, {STOP}},
		{VERDICT_UNTRUSTED, {.listed = true, .proven = true},
			{100, 200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct retry_state s = rows[i].state;
		struct tries tries = {0};
		int64_t wait = 0;

		s.random = UINT32_MAX;
		for (unsigned n = 0; n < 10 && wait != STOP; n++) {
			wait = again(&tries, rows[i].kind, s);
			if (wait != rows[i].pause[n] && wait != rows[i].pause[n] - 1)
				fail_msg("row %zu, try %u: %lld", i, n, (long long)wait);
		}
	}
	assert_int_equal(again(&(struct tries){.paced = 9}, VERDICT_HEALS,
				 (struct retry_state){.random = 0}),
		0); /* full jitter */
}

/* Each outage may begin with answers that are not the object's. */
static void test_other_answers_are_counted_in_a_row(void **state)
{
	const struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries tries = {0};

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_true(again(&tries, VERDICT_OTHER, s) >= 0);
		assert_true(again(&tries, VERDICT_OTHER, s) >= 0);
		assert_true(again(&tries, i % 2 ? VERDICT_HEALS : VERDICT_TORN, s) > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pauses_and_final_faults),
		cmocka_unit_test(test_other_answers_are_counted_in_a_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
