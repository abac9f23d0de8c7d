/* max_epochs: where datasets end, the effect of removing one, and how many mixes fit into a
 * cursor. */
#include "proto/cursor.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/schedules.h"

/* Counts the samples of @d in the block at @at of segment @s, one by one. */
static uint64_t served_in_block(const struct order_segment *s, uint64_t at, uint32_t d)
{
	uint64_t ordinal, n = 0;
	uint32_t dataset;

	for (uint64_t j = at - s->start; j < at - s->start + LIMIT_BLOCK; j++) {
		order_split(s, j, &dataset, &ordinal);
		n += dataset == d;
	}
	return n;
}

static uint64_t limit_of(const struct cursor *c, uint32_t d)
{
	return c->dataset[d].max_epochs ? c->order[d].windows * c->dataset[d].max_epochs
					: UINT64_MAX;
}

/* Counts the samples of @d before @at, a multiple of 1024. */
static uint64_t served_before(const struct cursor *c, uint64_t at, uint32_t d)
{
	uint32_t i = c->segments - 1;
	struct order_segment *next;
	uint64_t served, all[LIMIT_DATASETS] = {[0] = ORDER_UNITS};

	while (c->segment[i]->start > at)
		i--;
	if (c->segment[i]->start == at)
		return base_of(c->segment[i], d);
	next = order_segment_next(c->segment[i], at, all, c->datasets);
	assert_non_null(next);
	served = next->base[d];
	order_segment_free(next);
	return served;
}

/* Checks that each segment ends exactly the datasets whose limits the next block would exceed: by
 * counting, not by the inverse that placed it. @asked: starts of requested mixes. */
static void check_limits(const struct cursor *c, const uint64_t *asked, uint32_t n)
{
	for (uint32_t i = 1; i < c->segments; i++) {
		const struct order_segment *before = c->segment[i - 1], *s = c->segment[i];
		bool wanted = false, taken = false;

		for (uint32_t k = 0; k < n; k++)
			wanted |= asked[k] == s->start;
		for (uint32_t d = 0; d < c->datasets && !wanted; d++) {
			bool beyond = served_before(c, s->start, d) +
					      served_in_block(before, s->start, d) >
				      limit_of(c, d);

			if (units_of(before, d) > 0)
				assert_int_equal(units_of(s, d) == 0, beyond);
			else
				assert_int_equal(units_of(s, d), 0);
			taken |= beyond;
		}
		assert_true(wanted || taken);
	}
	for (uint32_t d = 0; d < c->datasets; d++)
		for (uint32_t i = 0; i < c->segments; i++)
			assert_true(base_of(c->segment[i], d) <= limit_of(c, d));
	/* An endless stream ends with a segment in which no dataset reaches its limit. */
	if (!c->samples)
		for (uint32_t d = 0; d < c->datasets; d++)
			assert_true(units_of(c->segment[c->segments - 1], d) == 0 ||
				    limit_of(c, d) == UINT64_MAX);
}

static void a_dataset_ends_before_the_block_that_exceeds_it(void **state)
{
	struct cursor c = begin(0, 2, 0, NULL, 0);
	uint64_t position, unserved, block;

	(void)state;
	/* code: 6640 samples, 256 a block: the 26th block would exceed the limit. */
	assert_int_equal(c.segments, 2);
	check_units(c.segment[0], 0, W(.7, .25, .05));
	check_units(c.segment[1], UINT64_C(25) * 1024, W(.7, 0, .05));
	check_limits(&c, NULL, 0);
	assert_false(cursor_unserved(&c, 0, &position, &unserved));
	assert_true(cursor_unserved(&c, 1, &position, &unserved));
	block = served_in_block(c.segment[0], position, 1);
	assert_int_equal(position, 25 * 1024);
	assert_int_equal(unserved, 6640 - c.segment[1]->base[1]);
	assert_true(unserved < block && block >= 255 && block <= 257);
	cursor_free(&c);
}

static void datasets_end_one_after_the_other(void **state)
{
	struct cursor c = begin(3, 2, 0, NULL, 0);
	uint64_t position, unserved;

	(void)state;
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], c.segment[2]->start, W(0, 0, 1));
	check_limits(&c, NULL, 0);
	assert_true(cursor_unserved(&c, 0, &position, &unserved));
	assert_int_equal(position, c.segment[2]->start);
	assert_int_equal(unserved, 3 * 12490 - c.segment[2]->base[0]);
	cursor_free(&c);
}

/* Two datasets that end in the same block, and one that would end in the first block. */
static void datasets_end_together(void **state)
{
	struct cursor_source sources[] = {source("a", 1, 5000, 1), source("b", 1, 5000, 1),
		source("tiny", 1, 10, 3), source("rest", 1, 1000, 0)};
	uint64_t position, unserved;
	struct fault fault;
	struct cursor c;

	(void)state;
	assert_true(begin_as(&c, sources, 4, 0, 0, NULL, 0, &fault));
	assert_int_equal(c.segments, 2);
	check_units(c.segment[0], 0, W(1, 1, 0, 1));
	check_units(c.segment[1], 14 * 1024, W(0, 0, 0, 1));
	assert_true(cursor_unserved(&c, 2, &position, &unserved));
	assert_int_equal(position, 0);
	assert_int_equal(unserved, 30);
	check_limits(&c, NULL, 0);
	cursor_free(&c);
}

static void steps_keep_within_limits(void **state)
{
	/* code ends in the first mix, so its weight in the second has no effect. math ends in the
	 * second. */
	const struct cursor_step steps[] = {AT(40960, .5, .4, .1), AT(51200, 1, 0, 0),
		AT(102400, 1, 0, 1), AT(204800, .999, 0, .001)};
	struct cursor c = begin(0, 2, 8, steps, 4);
	uint64_t position, unserved;

	(void)state;
	check_limits(&c, (const uint64_t[]){40960, 51200, 102400, 204800}, 4);
	check_units(c.segment[1], 25600, W(.7, 0, .05));
	check_units(c.segment[2], 40960, W(.5, 0, .1));
	check_units(c.segment[3], 40960 + 8 * 1024, W(1, 0, 0));
	/* The two mixes after it change nothing: math has less than half a block left. The last mix
	 * gives math a thousandth, for which that is enough. */
	assert_int_equal(c.segments, 6);
	check_units(c.segment[4], 204800, W(.999, 0, .001));
	check_units(c.segment[5], c.segment[5]->start, W(1, 0, 0));
	assert_true(c.segment[5]->start > 204800 + 5 * 1024);
	assert_true(cursor_unserved(&c, 2, &position, &unserved));
	assert_int_equal(position, c.segment[5]->start);
	assert_in_range(unserved, 0, 1);
	cursor_free(&c);
}

static void limits_may_last_to_the_end_of_a_stream(void **state)
{
	struct cursor_source sources[] = {source("web", 3, 1000, 1), source("code", 1, 1000, 1)};
	uint64_t position, unserved;
	struct fault fault;
	struct cursor c;

	(void)state;
	/* Both have a weight to the end. */
	assert_true(begin_as(&c, sources, 2, 0, 1024, NULL, 0, &fault));
	assert_int_equal(c.segments, 1);
	assert_false(cursor_unserved(&c, 0, &position, &unserved));
	cursor_free(&c);
	/* web's second block would exceed its limit by one; code alone in the next block stays
	 * within. */
	sources[1].windows = 1280;
	assert_true(begin_as(&c, sources, 2, 0, 2048, NULL, 0, &fault));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_unserved(&c, 0, &position, &unserved));
	assert_int_equal(position, 1024);
	assert_int_equal(unserved, 1000 - 768);
	assert_false(cursor_unserved(&c, 1, &position, &unserved));
	cursor_free(&c);
	bool ok = begin_as(&c, sources, 2, 0, 2049, NULL, 0, &fault);

	cursor_free(&c);
	check_fault(ok, &fault, "max_epochs", "no dataset is left from position 2048 on");
	assert_non_null(strstr(fault.text, "epochs:"));
	ok = begin_as(&c, sources, 2, 0, 0, NULL, 0, &fault);
	cursor_free(&c);
	check_fault(ok, &fault, "max_epochs", "2048");
	ok = begin_as(&c, sources, 2, 1, 0, NULL, 0, &fault);
	cursor_free(&c);
	check_fault(ok, &fault, "dataset web: max_epochs", "epochs");
}

/* A limit of 2^64 samples or more is none. */
static void limits_beyond_2_to_the_64_are_none(void **state)
{
	struct cursor_source sources[] = {
		source("web", 3, UINT64_MAX, UINT64_MAX), source("code", 1, UINT64_C(1) << 62, 4)};
	struct fault fault;
	uint64_t position, unserved;
	struct cursor c;

	(void)state;
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &fault));
	assert_int_equal(c.segments, 1);
	assert_false(cursor_unserved(&c, 0, &position, &unserved));
	cursor_free(&c);
	sources[1].max_epochs = 1; /* it would end at 2^64 */
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &fault));
	assert_int_equal(c.segments, 1);
	cursor_free(&c);
	sources[1].windows--; /* it ends in the last block */
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &fault));
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, UINT64_MAX - 1023);
	cursor_free(&c);
}

static void mixes_respect_the_limits(void **state)
{
	struct cursor c = begin(0, 2, 0, NULL, 0);
	uint64_t position, unserved;
	struct fault fault;

	(void)state;
	/* A mix after the end of code: the segments before it stay. */
	assert_true(cursor_mix(&c, 40960, W(1, 0, 1), &fault));
	assert_int_equal(c.segments, 3);
	assert_int_equal(c.segment[1]->start, 25600);
	assert_int_equal(c.segment[2]->start, 40960);
	/* A mix before that: code ends later, because its weight is smaller. */
	assert_true(cursor_mix(&c, 1024, W(.8, .1, .1), &fault));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[1], 1024, W(.8, .1, .1));
	check_units(c.segment[2], c.segment[2]->start, W(.8, 0, .1));
	assert_in_range(c.segment[2]->start, 61 * 1024, 65 * 1024);
	check_limits(&c, (const uint64_t[]){1024}, 1);
	/* A weight for code after its end is an error. */
	assert_true(cursor_seek(&c, 70000, &fault));
	assert_true(cursor_unserved(&c, 1, &position, &unserved));
	struct cursor before;

	assert_true(cursor_copy(&before, &c));
	check_fault(cursor_mix(&c, 81920, W(1, 1, 1), &fault), &fault, "dataset code: weight",
		"max_epochs (2)");
	assert_true(equal_bytes(&c, &before));
	check_fault(cursor_mix(&c, 81920, W(0, 1, 0), &fault), &fault, "dataset code: weight",
		"must be 0");
	/* The limit may be raised. */
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 3, 0}, &fault));
	assert_true(cursor_mix(&c, 81920, W(1, 1, 1), &fault));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], c.segment[2]->start, W(1, 0, 1));
	/* A limit below the samples served ends the dataset as soon as possible. */
	assert_true(cursor_seek(&c, 82000, &fault));
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 1, 0}, &fault));
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, 81920 + 1024);
	assert_true(cursor_unserved(&c, 1, &position, &unserved));
	assert_int_equal(unserved, 0);
	cursor_free(&before);
	cursor_free(&c);
}

/* If a dataset ends at the cursor's position, the new mix is the current one. */
static void a_limit_that_is_due_acts_at_once(void **state)
{
	struct cursor c = begin(0, 0, 0, NULL, 0);
	struct fault fault;

	(void)state;
	assert_true(cursor_seek(&c, 30720, &fault));
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 1, 0}, &fault));
	assert_int_equal(c.segments, 1);
	assert_int_equal(c.segment[0]->start, 30720);
	assert_int_equal(c.segment[0]->units[1], 0);
	check_fault(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){1, 1, 1}, &fault), &fault,
		"max_epochs", "31744");
	cursor_free(&c);
}

static void added_datasets_keep_their_limits(void **state)
{
	struct cursor_source late = source("late", 0, 1000, 2);
	struct cursor c = begin(0, 0, 0, NULL, 0);
	uint64_t position, unserved;
	struct fault fault;

	(void)state;
	assert_true(cursor_add(&c, &late, &fault));
	assert_int_equal(c.segments, 1);
	assert_true(cursor_mix(&c, 4096, W(1, 0, 0, 1), &fault));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], 4096 + 3 * 1024, W(1, 0, 0, 0));
	assert_true(cursor_unserved(&c, 3, &position, &unserved));
	assert_int_equal(unserved, 2000 - 3 * 512);
	cursor_free(&c);
}

/* ---- removing ---- */

static void a_removed_dataset_is_not_served(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, .25, .5, .25), AT(8192, 1, 0, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), plain;
	struct fault fault;

	(void)state;
	assert_true(cursor_copy(&plain, &c));
	assert_true(cursor_remove(&c, 1, 3072, &fault));
	assert_int_equal(c.datasets, 3);
	assert_int_equal(c.segments, 4);
	assert_int_equal(c.segment[1]->start, 2048);
	assert_memory_equal(c.segment[1]->units, plain.segment[1]->units,
		24); /* unchanged before the position */
	check_units(c.segment[2], 3072, W(1, 0, 0));
	check_units(c.segment[3], 4096, W(1, 0, 1)); /* the mix from 8192 on is now the same */
	cursor_free(&c);
	/* At the start of another mix. */
	assert_true(cursor_copy(&c, &plain));
	assert_true(cursor_remove(&c, 0, 4096, &fault));
	assert_int_equal(c.segments, 4);
	check_units(c.segment[1], 2048, W(.5, .5, 0));
	check_units(c.segment[2], 4096, W(0, .5, .25));
	check_units(c.segment[3], 8192, W(0, 0, 1));
	/* From the only mix with a weight. */
	assert_true(cursor_schedule(&c, NULL,
		(const struct cursor_step[]){
			AT(2048, 1, 1, 0), AT(4096, 1, 1, 2), AT(8192, 2, 1, 0)},
		3, NULL, &fault));
	assert_true(cursor_remove(&c, 2, 4096, &fault));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[1], 2048, W(1, 1, 0));
	check_units(c.segment[2], 8192, W(2, 1, 0));
	cursor_free(&c);
	cursor_free(&plain);
}

static void impossible_removals_are_refused(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, 0, 1, 0), AT(8192, 1, 0, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), before, f;
	struct cursor_source two[] = {source("web", 1, 100, 0), source("code", 1, 100, 0)};
	struct fault fault;

	(void)state;
	assert_true(cursor_copy(&before, &c));
	check_fault(cursor_remove(&c, 1, 1024, &fault), &fault, "dataset code: weight",
		"position 4096");
	check_fault(cursor_remove(&c, 1, 8192, &fault), &fault, "dataset code: weight",
		"0 already from position 8192");
	check_fault(cursor_remove(&c, 1, 5120, &fault), &fault, "dataset code: weight",
		"position 5120");
	check_fault(cursor_remove(&c, 2, 1000, &fault), &fault, "position", "use 1024");
	check_fault(cursor_remove(&c, 2, 0, &fault), &fault, "position", "use 1024");
	assert_true(equal_bytes(&c, &before));
	assert_true(begin_as(&f, two, 2, 1, 0, NULL, 0, &fault));
	check_fault(cursor_remove(&f, 1, 1024, &fault), &fault, "remove", "epochs");
	cursor_free(&before);
	cursor_free(&c);
	cursor_free(&f);
}

/* Without one dataset the others are served faster, so their limits come sooner. */
static void removing_a_dataset_moves_the_limits_of_the_rest(void **state)
{
	struct cursor c = begin(0, 4, 0, NULL, 0);
	struct fault fault;
	uint64_t end = c.segment[1]->start;

	(void)state;
	assert_int_equal(c.segments, 2);
	assert_true(cursor_remove(&c, 0, 5120, &fault));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], c.segment[2]->start, W(0, 0, 1));
	assert_true(c.segment[2]->start < end);
	check_limits(&c, (const uint64_t[]){5120}, 1);
	check_fault(cursor_remove(&c, 2, 6144, &fault), &fault, "dataset math: weight",
		"no other dataset");
	cursor_free(&c);
}

/* ---- size ---- */

static struct cursor many(uint32_t n, uint32_t limited, struct fault *fault, bool *ok)
{
	struct cursor_source *sources = calloc(n, sizeof(*sources));
	char(*names)[16] = calloc(n, sizeof(*names));
	struct cursor c;

	assert_non_null(sources);
	assert_non_null(names);
	for (uint32_t d = 0; d < n; d++) {
		snprintf(names[d], sizeof(names[d]), "d%u", d);
		sources[d] = source(names[d], 1 + d % 7, 100000 + 5000 * d, d < limited ? 3 : 0);
	}
	*ok = begin_as(&c, sources, n, 0, 0, NULL, 0, fault);
	free(sources);
	free(names);
	return c;
}

static void limits_of_a_thousand_datasets_fit(void **state)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct fault fault;
	double weights[1000];
	struct cursor back;
	bool ok;
	struct cursor c = many(1000, 5, &fault, &ok);

	(void)state;
	assert_true(ok);
	assert_int_equal(c.segments, 6);
	check_limits(&c, NULL, 0);
	for (unsigned d = 0; d < 1000; d++)
		weights[d] = d % 3;
	assert_true(cursor_mix(&c, 1024, weights, &fault));
	assert_true(cursor_remove(&c, 1, 1024, &fault));
	size_t n = encode(&c, bytes);

	assert_true(cursor_decode(&back, bytes, n, &fault));
	assert_true(equal_bytes(&back, &c));
	cursor_free(&back);
	cursor_free(&c);
	c = many(1000, 500, &fault, &ok);
	check_fault(ok, &fault, "schedule", "1000 datasets");
	assert_non_null(strstr(fault.text, "max_epochs"));
	cursor_free(&c);
	c = many(100, 99, &fault, &ok);
	assert_true(ok);
	assert_in_range(c.segments, 50, 100);
	check_limits(&c, NULL, 0);
	encode(&c, bytes);
	cursor_free(&c);
}

/* The largest schedule that is accepted can be encoded; a larger one is refused with a reason. */
static void schedules_fit_into_their_bound(void **state)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct cursor_source sources[] = {source("web", .7, 12490, 0), source("code", .25, 3320, 0),
		source("math", .05, 460, 0)};
	uint32_t low = 1, high = 1 << 20;
	struct fault fault;
	struct cursor c;
	size_t n = 0;

	(void)state;
	while (low + 1 < high) {
		uint32_t middle = low + (high - low) / 2;

		if (begin_as(&c, sources, 3, 0, 0,
			    &RAMP(UINT64_C(1) << 60, UINT64_C(1) << 61, middle, 0, 1, 2), 1,
			    &fault)) {
			n = encode(&c, bytes);
			assert_int_equal(c.segments, 1 + middle);
			low = middle;
		} else {
			check_fault(false, &fault, "schedule", "fewer steps");
			high = middle;
		}
		cursor_free(&c);
	}
	assert_in_range(low, 3000, 5000);
	assert_true(n > LIMIT_CURSOR_BYTES - 1024);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dataset_ends_before_the_block_that_exceeds_it),
		cmocka_unit_test(datasets_end_one_after_the_other),
		cmocka_unit_test(datasets_end_together),
		cmocka_unit_test(steps_keep_within_limits),
		cmocka_unit_test(limits_may_last_to_the_end_of_a_stream),
		cmocka_unit_test(limits_beyond_2_to_the_64_are_none),
		cmocka_unit_test(mixes_respect_the_limits),
		cmocka_unit_test(a_limit_that_is_due_acts_at_once),
		cmocka_unit_test(added_datasets_keep_their_limits),
		cmocka_unit_test(a_removed_dataset_is_not_served),
		cmocka_unit_test(impossible_removals_are_refused),
		cmocka_unit_test(removing_a_dataset_moves_the_limits_of_the_rest),
		cmocka_unit_test(limits_of_a_thousand_datasets_fit),
		cmocka_unit_test(schedules_fit_into_their_bound),
	};

	return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
