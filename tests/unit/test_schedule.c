/* Schedules: the segments that steps and ramps become, and invalid steps. Chains of random edits
 * are proved by tests/prove (orders) and compared with a reference by
 * tests/system/test_cursor_edits.py. */
#include "proto/cursor.h"
#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/schedules.h"

/* ---- schedules ---- */

static void steps_become_segments(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, 0, 0, 1), AT(1 << 20, 1, 1, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), now = begin(0, 0, 0, NULL, 0);
	struct fault fault;

	(void)state;
	assert_int_equal(c.segments, 4);
	check_units(c.segment[0], 0, W(.7, .25, .05));
	check_units(c.segment[1], 2048, W(.5, .5, 0));
	check_units(c.segment[2], 4096, W(0, 0, 1));
	check_units(c.segment[3], 1 << 20, W(1, 1, 1));
	assert_true(cursor_belongs(&c, &now, &fault));
	/* The result equals that of separate mixes at these positions. */
	for (unsigned i = 0; i < 3; i++) {
		assert_true(cursor_mix(&now, steps[i].from, steps[i].weights, &fault));
		assert_true(cursor_seek(&now, steps[i].from, &fault));
		assert_true(cursor_seek(&c, steps[i].from, &fault));
		assert_int_equal(c.segments, 3 - i);
		assert_memory_equal(c.segment[0]->base, now.segment[0]->base, 24);
		assert_memory_equal(c.segment[0]->phase, now.segment[0]->phase, 32);
	}
	assert_true(equal_bytes(&c, &now));
	cursor_free(&c);
	cursor_free(&now);
}

/* A ramp as specified, computed in the plainest way. */
static void check_ramp(const uint64_t *before, const uint64_t *after, uint32_t n, uint32_t k,
	uint32_t steps, const uint64_t *units)
{
	uint64_t expected[LIMIT_DATASETS], left = ORDER_UNITS, rest[LIMIT_DATASETS];

	for (uint32_t d = 0; d < n; d++) {
		u128 sum = (u128)before[d] * (steps - k) + (u128)after[d] * k;

		expected[d] = (uint64_t)(sum / steps);
		rest[d] = (uint64_t)(sum % steps) + 1;
		left -= expected[d];
	}
	for (; left > 0; left--) {
		uint32_t best = 0;

		for (uint32_t d = 1; d < n; d++)
			if (rest[d] > rest[best])
				best = d;
		rest[best] = 0;
		expected[best]++;
	}
	assert_memory_equal(units, expected, n * sizeof(*units));
}

static void ramps_are_the_specified_ones(void **state)
{
	struct fault fault;
	static const uint32_t counts[] = {1, 2, 3, 7, 10, 48};
	uint64_t before[3], after[3];

	(void)state;
	assert_true(order_units(W(.7, .25, .05), 3, before, &fault));
	assert_true(order_units(W(0, 1, 2), 3, after, &fault));
	for (unsigned i = 0; i < COUNT(counts); i++) {
		uint32_t steps = counts[i];
		struct cursor c = begin(0, 0, 0, &RAMP(2048, 51200, steps, 0, 1, 2), 1);

		assert_int_equal(c.segments, 1 + steps);
		for (uint32_t k = 1; k <= steps; k++) {
			const struct order_segment *s = c.segment[k];

			assert_int_equal(s->start,
				(2048 + (51200 - 2048) * (uint64_t)k / steps) / 1024 * 1024);
			check_ramp(before, after, 3, k, steps, s->units);
		}
		assert_memory_equal(c.segment[steps]->units, after, sizeof(after));
		cursor_free(&c);
	}
}

/* A ramp in numbers, for other implementations. */
static void a_ramp_in_numbers(void **state)
{
	struct cursor c = begin(0, 0, 0, &RAMP(0, 4096, 3, 0, 0, 1), 1);

	(void)state;
	assert_int_equal(c.segments, 4);
	assert_int_equal(c.segment[1]->start, 1024);
	assert_int_equal(c.segment[2]->start, 2048);
	assert_int_equal(c.segment[3]->start, 4096);
	assert_memory_equal(
		c.segment[0]->units, ((uint64_t[]){3006477107, 1073741824, 214748365}), 24);
	assert_memory_equal(
		c.segment[1]->units, ((uint64_t[]){2004318071, 715827883, 1574821342}), 24);
	assert_memory_equal(
		c.segment[2]->units, ((uint64_t[]){1002159036, 357913941, 2934894319}), 24);
	assert_memory_equal(c.segment[3]->units, ((uint64_t[]){0, 0, 4294967296}), 24);
	cursor_free(&c);
}

static void ramps_follow_each_other(void **state)
{
	const struct cursor_step steps[] = {
		AT(1024, 1, 0, 0), RAMP(1024, 9216, 4, 0, 1, 0), RAMP(9216, 13312, 4, 0, 0, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3);

	(void)state;
	assert_int_equal(c.segments, 10);
	check_units(c.segment[3], 5120, W(.5, .5, 0));
	check_units(c.segment[5], 9216, W(0, 1, 0));
	check_units(c.segment[6], 10240, W(0, .75, .25));
	check_units(c.segment[9], 13312, W(0, 0, 1));
	cursor_free(&c);
}

static void a_step_that_changes_nothing_makes_no_segment(void **state)
{
	const struct cursor_step steps[] = {
		AT(1024, .7, .25, .05), AT(2048, 1, 0, 0), RAMP(3072, 10240, 7, 1, 0, 0)};
	struct cursor c = begin(0, 0, 0, steps, 3);

	(void)state;
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, 2048);
	cursor_free(&c);
}

static void refuse_steps(uint64_t epochs, uint64_t samples, const struct cursor_step *steps,
	uint32_t n, const char *field, const char *text)
{
	struct cursor_source sources[] = {source("web", .7, 12490, 0), source("code", .25, 3320, 0),
		source("empty", 0, 0, 0)};
	struct fault fault;
	struct cursor c;
	bool ok = begin_as(&c, sources, 3, epochs, samples, steps, n, &fault);

	cursor_free(&c);
	check_fault(ok, &fault, field, text);
	if (epochs)
		return;
	assert_true(begin_as(&c, sources, 3, 0, samples, NULL, 0, &fault));
	if (steps[0].to == 0) {
		cursor_free(&c);
		return; /* cursor_begin() has the weights for that */
	}
	ok = cursor_schedule(&c, NULL, steps, n, NULL, &fault);
	check_fault(ok, &fault, field, text);
	assert_int_equal(c.segments, 1);
	cursor_free(&c);
}

static void invalid_schedules_are_refused(void **state)
{
	(void)state;
#define REFUSED(field, text, ...)                                                                  \
	refuse_steps(0, 0, (const struct cursor_step[]){__VA_ARGS__},                              \
		sizeof((const struct cursor_step[]){__VA_ARGS__}) / sizeof(struct cursor_step),    \
		field, text)
	REFUSED("schedule[0]: at", "must be above 0", AT(0, 1, 1, 0));
	REFUSED("schedule[0]: at", "use 2048", AT(1025, 1, 1, 0));
	REFUSED("schedule[0]: at", "use 18446744073709550592", AT(UINT64_MAX, 1, 1, 0));
	REFUSED("schedule[1]: from", "use 2048", AT(1024, 1, 1, 0), RAMP(1500, 4096, 2, 1, 0, 0));
	REFUSED("schedule[0]: to", "use 4096", RAMP(1024, 4000, 2, 1, 0, 0));
	REFUSED("schedule[0]: to", "before from", RAMP(4096, 1024, 2, 1, 0, 0));
	REFUSED("schedule[0]: steps", "must be 1 to 3", RAMP(1024, 4096, 4, 1, 0, 0));
	REFUSED("schedule[0]: steps", "must be 1 to 3", RAMP(1024, 4096, 0, 1, 0, 0));
	REFUSED("schedule[0]: steps", "must be 1 to 1", RAMP(1024, 1024, 2, 1, 0, 0));
	REFUSED("schedule[1]: at", "ascending", AT(2048, 1, 1, 0), AT(2048, 1, 0, 0));
	REFUSED("schedule[1]: at", "ascending", AT(2048, 1, 1, 0), AT(1024, 1, 0, 0));
	REFUSED("schedule[1]: from", "4096", RAMP(1024, 4096, 2, 1, 1, 0),
		RAMP(3072, 8192, 2, 1, 0, 0));
	REFUSED("schedule[1]: dataset code: weight", "nan", AT(1024, 1, 1, 0),
		AT(2048, 1, (double)NAN, 0));
	REFUSED("schedule[0]: dataset web: weight", "-1", AT(1024, -1, 1, 0));
	REFUSED("schedule[0]: dataset web: weight", "inf", AT(1024, (double)INFINITY, 1, 0));
	REFUSED("schedule[0]: dataset code: weight", "never served", AT(1024, 1, 1e-12, 0));
	REFUSED("schedule[0]: dataset empty: weight", "no window", AT(1024, 1, 1, 1));
	REFUSED("schedule[0]: weights", "sum", AT(1024, 0, 0, 0));
	REFUSED("schedule", "fewer steps", RAMP(0, UINT64_C(1) << 40, 1 << 30, 1, 0, 0));
	REFUSED("schedule", "fewer steps", RAMP(0, UINT64_C(1) << 40, 8000, 1, 0, 0));
#undef REFUSED
	refuse_steps(1, 0, &AT(1024, 1, 1, 0), 1, "schedule", "epochs");
	refuse_steps(0, 5000, &AT(5120, 1, 1, 0), 1, "schedule[0]: at", "5000");
}

static void a_schedule_set_during_a_run(void **state)
{
	const struct cursor_step steps[] = {AT(2048, .5, .5, 0), RAMP(4096, 12288, 8, 0, 0, 1)};
	const double *weights = W(.7, .25, .05);
	struct cursor c = begin(0, 0, 0, steps, 2), other = begin(0, 0, 0, NULL, 0), again;
	struct fault fault;

	(void)state;
	/* Setting a run's own schedule again changes nothing at any position. */
	for (uint64_t position = 0; position < 14000; position += 500) {
		assert_true(cursor_seek(&c, position, &fault));
		assert_true(cursor_copy(&again, &c));
		assert_true(cursor_schedule(&again, weights, steps, 2, NULL, &fault));
		assert_true(equal_bytes(&again, &c));
		cursor_free(&again);
	}
	/* Another schedule: past steps are dropped, except the last, which acts at once. */
	assert_true(cursor_seek(&other, 7000, &fault));
	assert_true(cursor_schedule(&other, weights, steps, 2, NULL, &fault));
	assert_int_equal(other.segments, 7);
	check_units(other.segment[1], 7168, W(.5 * 5, .5 * 5, 3));
	check_units(other.segment[2], 8192, W(.5, .5, 1));
	assert_true(cursor_seek(&other, 1 << 20, &fault));
	assert_true(cursor_schedule(&other, weights, steps, 2, NULL, &fault));
	assert_int_equal(other.segments, 1);
	/* An empty schedule removes pending mixes. */
	assert_true(cursor_mix(&other, 2 << 20, W(1, 1, 1), &fault));
	assert_true(cursor_schedule(&other, NULL, NULL, 0, NULL, &fault));
	assert_int_equal(other.segments, 1);
	cursor_free(&c);
	cursor_free(&other);
}

static void a_schedule_needs_a_block_below_2_to_the_64(void **state)
{
	struct cursor c = begin(0, 0, 0, NULL, 0);
	struct fault fault;

	(void)state;
	assert_true(cursor_seek(&c, UINT64_MAX - 5, &fault));
	check_fault(cursor_schedule(&c, NULL, &AT(1024, 1, 1, 1), 1, NULL, &fault), &fault,
		"schedule", "no block");
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){1, 0, 0}, &fault));
	cursor_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_become_segments),
		cmocka_unit_test(ramps_are_the_specified_ones),
		cmocka_unit_test(a_ramp_in_numbers),
		cmocka_unit_test(ramps_follow_each_other),
		cmocka_unit_test(a_step_that_changes_nothing_makes_no_segment),
		cmocka_unit_test(invalid_schedules_are_refused),
		cmocka_unit_test(a_schedule_set_during_a_run),
		cmocka_unit_test(a_schedule_needs_a_block_below_2_to_the_64),
	};

	return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
