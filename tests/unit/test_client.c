/*
 * Conversion of tokens at each length and alignment. python/ and system/ test the rest of the
 * client with a real daemon.
 */
#include "client/lib/handle.h"

#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- conversion to int64 ---- */

static void widening_works_at_any_length_and_alignment(void **state)
{
	struct rng random = {7};
	uint32_t from[80];
	uint16_t halves[2 * COUNT(from)];
	int64_t to[80];

	(void)state;
	for (size_t n = 0; n < 70; n++)
		for (size_t at = 0; at < 8; at++) {
			for (size_t i = 0; i < COUNT(from); i++)
				from[i] = (uint32_t)rng_next(&random) | UINT32_C(1) << 31;
			memset(to, 0xee, sizeof(to));
			tokend_widen(to + at, from + at, n, 4);
			for (size_t i = 0; i < COUNT(to); i++)
				assert_true(to[i] ==
					    (i >= at && i < at + n ? (int64_t)from[i]
								   : (int64_t)UINT64_C(
									     0xeeeeeeeeeeeeeeee)));
			memcpy(halves, from, sizeof(from));
			tokend_widen(to + at, halves + at, n, 2);
			for (size_t i = 0; i < n; i++)
				assert_true(to[at + i] == halves[at + i]);
		}
}

/* Converts [@n + 1] tokens in both ways to int32. Returns the result, the same for both. */
static int to_int32(int32_t *to, int32_t *next, const void *from, size_t n, uint32_t token_bytes)
{
	int r = tokend_widen_int32(to, from, n + 1, token_bytes);

	assert_int_equal(tokend_widen_pair_int32(to, next, from, n, token_bytes), r);
	return r;
}

static void int32_holds_every_token_that_fits(void **state)
{
	struct rng random = {8};
	uint32_t from[80];
	uint16_t halves[2 * COUNT(from)];
	int32_t to[80], next[80];
	const int32_t unset = (int32_t)0xeeeeeeee;

	(void)state;
	for (size_t n = 0; n < 70; n++)
		for (size_t at = 0; at < 8; at++) {
			for (size_t i = 0; i < COUNT(from); i++)
				from[i] = (uint32_t)rng_next(&random) >> 1;
			from[at + n / 2] = INT32_MAX;
			memcpy(halves, from, sizeof(from));
			memset(to, 0xee, sizeof(to));
			memset(next, 0xee, sizeof(next));
			assert_int_equal(tokend_widen_int32(to + at, from + at, n, 4), 0);
			for (size_t i = 0; i < COUNT(to); i++)
				assert_int_equal(
					to[i], i >= at && i < at + n ? (int32_t)from[i] : unset);
			assert_int_equal(
				tokend_widen_pair_int32(to + at, next + at, from + at, n, 4), 0);
			for (size_t i = 0; i < COUNT(to); i++)
				assert_int_equal(next[i],
					i >= at && i < at + n ? (int32_t)from[i + 1] : unset);
			assert_int_equal(to_int32(to + at, next + at, halves + at, n, 2), 0);
			for (size_t i = 0; i < n; i++)
				assert_true(to[at + i] == halves[at + i] &&
					    next[at + i] == halves[at + i + 1]);
		}
}

static void int32_rejects_the_first_token_that_does_not_fit(void **state)
{
	uint32_t from[71] = {0};
	int32_t to[71], next[71];

	(void)state;
	for (size_t n = 1; n < COUNT(from); n++)
		for (size_t at = 0; at <= n; at++) {
			from[at] = UINT32_C(1) << 31;
			assert_int_equal(to_int32(to, next, from, n, 4), TOKEND_EARGUMENT);
			from[at] = INT32_MAX;
			assert_int_equal(to_int32(to, next, from, n, 4), 0);
			from[at] = 0;
		}
	to[0] = 7;
	assert_int_equal(to_int32(to, next, from, 1, 3), TOKEND_EARGUMENT);
	assert_int_equal(to[0], 7);
}

/* A ring whose counters cannot be is not used any more. */
static void a_broken_invariant_fails_the_handle(void **state)
{
	const uint64_t alive = 1;
	struct skip skip = {8, 16};
	uint64_t bits[1] = {0};
	struct mapping *m = calloc(1, sizeof(*m));
	struct tokend t = {.alive = &alive, .mapping = m, .world = 2, .micro_batch = 4, .step = 8};

	(void)state;
	m->ring.geometry.slots = 4;
	m->queue = (struct release_queue){.slots = 4, .bits = bits, .taken = 3};
	m->published = m->ring.geometry.slots;
	m->held = 3;
	t.skip = &skip;
	t.skips = 1;
	t.end = UINT64_MAX;
	t.taken = 24;
	assert_int_equal(position_check(&t), 0);
	m->published++;
	assert_int_equal(position_check(&t), TOKEND_EPROTOCOL);
	assert_int_equal(t.failed, TOKEND_EPROTOCOL);
	assert_string_equal(tokend_field(&t), "handle");
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(widening_works_at_any_length_and_alignment),
		cmocka_unit_test(int32_holds_every_token_that_fits),
		cmocka_unit_test(int32_rejects_the_first_token_that_does_not_fit),
		cmocka_unit_test(a_broken_invariant_fails_the_handle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
