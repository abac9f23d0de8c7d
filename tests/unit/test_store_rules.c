/*
 * What no answer of a store shows within a test's time: how the pauses between GETs of one range
 * grow, when a fault becomes final, and how overload and answers move the limit of GETs in flight.
 */
#include "daemon/store/limit.h"
#include "daemon/store/retry.h"

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
		{VERDICT_TORN, {.listed = true}, {0, 0, 0, 0, 100, 200, 400, 800, 1600, 3200}},
		{VERDICT_OTHER, {.listed = true}, {3751, 3751, STOP}},
		{VERDICT_OTHER, {.listed = false}, {STOP}},
		{VERDICT_FINAL, {.listed = true}, {STOP}},
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
static void test_other_and_torn_answers_are_counted_in_a_row(void **state)
{
	const struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries tries = {0};

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_true(again(&tries, VERDICT_OTHER, s) >= 0);
		assert_true(again(&tries, VERDICT_OTHER, s) >= 0);
		assert_true(again(&tries, VERDICT_HEALS, s) > 0);
		for (int torn = 1; torn < RETRY_TORN; torn++)
			assert_int_equal(again(&tries, VERDICT_TORN, s), 0);
	}
}

/* Answers while the limit is used up, answers while it is not, or an overload; then the limit. */
static void test_the_limit_of_gets_in_flight(void **state)
{
	static const struct {
		unsigned most, answers, unused;
		int64_t overload_ms; /* -1: none */
		unsigned now;
	} steps[] = {
		{128, 0, 0, -1, LIMIT_START},
		{128, 0, 100, -1, LIMIT_START}, /* not used: no growth */
		{128, 56, 0, -1, 64},		/* slow start: one an answer */
		{128, 1000, 0, -1, 128},
		{128, 0, 0, 5000, 64},
		{128, 0, 0, 5999, 64}, /* halved once a second */
		{128, 0, 0, 6000, 32},
		{128, 31, 0, -1, 32}, /* from now on one a round */
		{128, 1, 0, -1, 33},
		{128, 33, 0, 7000, 17},
		{128, 0, 0, 8000, 8},
		{128, 0, 0, 9000, LIMIT_LEAST},
		{128, 0, 0, 10000, LIMIT_LEAST},
		{2, 50, 0, -1, 2}, /* another one: its config allows less */
		{2, 0, 0, 0, 2},
	};
	struct limit limit = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (limit.most != steps[i].most)
			limit = limit_new(steps[i].most);
		for (unsigned n = 0; n < steps[i].answers; n++)
			limit_answered(&limit, limit.now);
		for (unsigned n = 0; n < steps[i].unused; n++)
			limit_answered(&limit, 1);
		if (steps[i].overload_ms >= 0)
			limit_overload(&limit, steps[i].overload_ms);
		if (limit.now != steps[i].now)
			fail_msg("step %zu: %u", i, limit.now);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pauses_and_final_faults),
		cmocka_unit_test(test_other_and_torn_answers_are_counted_in_a_row),
		cmocka_unit_test(test_the_limit_of_gets_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
