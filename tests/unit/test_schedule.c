/*
 * Mixes to come: schedules, ramps, and datasets that end by max_epochs. And chains of all edits at
 * random, over which every dataset's samples must run on without gap or repeat.
 */
#include "proto/cursor.h"

#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define W(...)	     ((const double[]){__VA_ARGS__})
#define AT(at, ...)                                                                                \
	(struct cursor_step)                                                                       \
	{                                                                                          \
		at, at, 1, W(__VA_ARGS__)                                                          \
	}
#define RAMP(from, to, steps, ...)                                                                 \
	(struct cursor_step)                                                                       \
	{                                                                                          \
		from, to, steps, W(__VA_ARGS__)                                                    \
	}

typedef unsigned __int128 u128;

static struct cursor_source source(
	const char *name, double weight, uint64_t windows, uint64_t max_epochs)
{
	return (struct cursor_source){
		name, weight, windows, 7, 64, 64, ORDER_GLOBAL, false, max_epochs};
}

static bool begin_as(struct cursor *c, const struct cursor_source *sources, uint32_t n,
	uint64_t epochs, uint64_t samples, const struct cursor_step *steps, uint32_t step_count,
	struct fault *why)
{
	struct cursor id = {.stream = "train",
		.seed = 42,
		.seq_len = 64,
		.extra = 1,
		.stride = 64,
		.epochs = epochs,
		.samples = samples};

	memset(why, 0, sizeof(*why));
	return cursor_begin(c, &id, sources, n, steps, step_count, why);
}

/* web .7, code .25, math .05 with these limits. */
static struct cursor begin(
	uint64_t web, uint64_t code, uint64_t math, const struct cursor_step *steps, uint32_t n)
{
	struct cursor_source sources[] = {source("web", .7, 12490, web),
		source("code", .25, 3320, code), source("math", .05, 460, math)};
	struct fault why;
	struct cursor c;

	if (!begin_as(&c, sources, 3, 0, 0, steps, n, &why))
		fail_msg("%s: %s", why.field, why.text);
	return c;
}

static size_t encode(const struct cursor *c, uint8_t *bytes)
{
	size_t n = cursor_encode(c, bytes, LIMIT_CURSOR_BYTES);

	assert_true(n > 0);
	return n;
}

static bool equal_bytes(const struct cursor *a, const struct cursor *b)
{
	static uint8_t x[LIMIT_CURSOR_BYTES], y[LIMIT_CURSOR_BYTES];
	size_t n = encode(a, x);

	return encode(b, y) == n && memcmp(x, y, n) == 0;
}

static void check_why(bool ok, const struct fault *why, const char *field, const char *text)
{
	assert_false(ok);
	assert_string_equal(why->field, field);
	if (!strstr(why->text, text))
		fail_msg("\"%s\" does not say \"%s\"", why->text, text);
	assert_null(strchr(why->text, '\n'));
}

static uint64_t units_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->units[d] : 0;
}

static uint64_t base_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->base[d] : 0;
}

static void check_units(const struct order_segment *s, uint64_t start, const double *weights)
{
	struct fault fault;
	uint64_t units[LIMIT_DATASETS];

	assert_int_equal(s->start, start);
	assert_true(order_units(weights, s->datasets, units, &fault));
	assert_memory_equal(s->units, units, s->datasets * sizeof(*units));
}

/* ---- schedules ---- */

static void steps_become_segments(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, 0, 0, 1), AT(1 << 20, 1, 1, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), now = begin(0, 0, 0, NULL, 0);
	struct fault why;

	(void)state;
	assert_int_equal(c.segments, 4);
	check_units(c.segment[0], 0, W(.7, .25, .05));
	check_units(c.segment[1], 2048, W(.5, .5, 0));
	check_units(c.segment[2], 4096, W(0, 0, 1));
	check_units(c.segment[3], 1 << 20, W(1, 1, 1));
	assert_true(cursor_belongs(&c, &now, &why));
	/* The same as what mixes at those places would have made. */
	for (unsigned i = 0; i < 3; i++) {
		assert_true(cursor_mix(&now, steps[i].from, steps[i].weights, &why));
		assert_true(cursor_seek(&now, steps[i].from, &why));
		assert_true(cursor_seek(&c, steps[i].from, &why));
		assert_int_equal(c.segments, 3 - i);
		assert_memory_equal(c.segment[0]->base, now.segment[0]->base, 24);
		assert_memory_equal(c.segment[0]->phase, now.segment[0]->phase, 32);
	}
	assert_true(equal_bytes(&c, &now));
	cursor_free(&c);
	cursor_free(&now);
}

/* A ramp as the text has it, written down in the plainest way. */
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

static void ramps(void **state)
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

/* A ramp in numbers, for those who would write another one. */
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

static void what_changes_nothing_is_no_segment(void **state)
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
	struct fault why;
	struct cursor c;
	bool ok = begin_as(&c, sources, 3, epochs, samples, steps, n, &why);

	cursor_free(&c);
	check_why(ok, &why, field, text);
	if (epochs)
		return;
	assert_true(begin_as(&c, sources, 3, 0, samples, NULL, 0, &why));
	if (steps[0].to == 0) {
		cursor_free(&c);
		return; /* there it means the weights at the beginning */
	}
	ok = cursor_schedule(&c, NULL, steps, n, NULL, &why);
	check_why(ok, &why, field, text);
	assert_int_equal(c.segments, 1);
	cursor_free(&c);
}

static void schedules_refused(void **state)
{
	(void)state;
#define REFUSED(field, text, ...)                                                                  \
	refuse_steps(0, 0, (const struct cursor_step[]){__VA_ARGS__},                              \
		sizeof((const struct cursor_step[]){__VA_ARGS__}) / sizeof(struct cursor_step),    \
		field, text)
	REFUSED("schedule[0]: at", "instead", AT(0, 1, 1, 0));
	REFUSED("schedule[0]: at", "take 2048", AT(1025, 1, 1, 0));
	REFUSED("schedule[0]: at", "take 18446744073709550592", AT(UINT64_MAX, 1, 1, 0));
	REFUSED("schedule[1]: from", "take 2048", AT(1024, 1, 1, 0), RAMP(1500, 4096, 2, 1, 0, 0));
	REFUSED("schedule[0]: to", "take 4096", RAMP(1024, 4000, 2, 1, 0, 0));
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
	REFUSED("schedule[0]: dataset code: weight", "small", AT(1024, 1, 1e-12, 0));
	REFUSED("schedule[0]: dataset empty: weight", "single window", AT(1024, 1, 1, 1));
	REFUSED("schedule[0]: weights", "sum", AT(1024, 0, 0, 0));
	REFUSED("schedule", "fewer steps", RAMP(0, UINT64_C(1) << 40, 1 << 30, 1, 0, 0));
	REFUSED("schedule", "fewer steps", RAMP(0, UINT64_C(1) << 40, 8000, 1, 0, 0));
#undef REFUSED
	refuse_steps(1, 0, &AT(1024, 1, 1, 0), 1, "schedule", "epochs");
	refuse_steps(0, 5000, &AT(5120, 1, 1, 0), 1, "schedule[0]: at", "5000");
}

static void a_schedule_in_the_middle(void **state)
{
	const struct cursor_step steps[] = {AT(2048, .5, .5, 0), RAMP(4096, 12288, 8, 0, 0, 1)};
	const double *weights = W(.7, .25, .05);
	struct cursor c = begin(0, 0, 0, steps, 2), other = begin(0, 0, 0, NULL, 0), again;
	struct fault why;

	(void)state;
	/* Wherever a run stands, its own schedule again changes nothing. */
	for (uint64_t position = 0; position < 14000; position += 500) {
		assert_true(cursor_seek(&c, position, &why));
		assert_true(cursor_copy(&again, &c));
		assert_true(cursor_schedule(&again, weights, steps, 2, NULL, &why));
		assert_true(equal_bytes(&again, &c));
		cursor_free(&again);
	}
	/* Another one: what has passed is left out, but for the last, which acts at once. */
	assert_true(cursor_seek(&other, 7000, &why));
	assert_true(cursor_schedule(&other, weights, steps, 2, NULL, &why));
	assert_int_equal(other.segments, 7);
	check_units(other.segment[1], 7168, W(.5 * 5, .5 * 5, 3));
	check_units(other.segment[2], 8192, W(.5, .5, 1));
	assert_true(cursor_seek(&other, 1 << 20, &why));
	assert_true(cursor_schedule(&other, weights, steps, 2, NULL, &why));
	assert_int_equal(other.segments, 1);
	/* None takes away what was pending. */
	assert_true(cursor_mix(&other, 2 << 20, W(1, 1, 1), &why));
	assert_true(cursor_schedule(&other, NULL, NULL, 0, NULL, &why));
	assert_int_equal(other.segments, 1);
	cursor_free(&c);
	cursor_free(&other);
}

static void a_schedule_with_no_block_left(void **state)
{
	struct cursor c = begin(0, 0, 0, NULL, 0);
	struct fault why;

	(void)state;
	assert_true(cursor_seek(&c, UINT64_MAX - 5, &why));
	check_why(cursor_schedule(&c, NULL, &AT(1024, 1, 1, 1), 1, NULL, &why), &why, "schedule",
		"no block");
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){1, 0, 0}, &why));
	cursor_free(&c);
}

/* ---- max_epochs ---- */

/* How many samples of @d the block at @at has by segment @s, one by one. */
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

/* What is served of @d before @at, a multiple of 1024. */
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

/* Each segment is the least change that the limits ask for, at the last block where it could come:
 * checked by counting, not by the inverse that placed it. @asked: starts that were asked for. */
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
	/* The last one has no end: nobody with a limit is left in it, or it never comes that far.
	 */
	if (!c->samples)
		for (uint32_t d = 0; d < c->datasets; d++)
			assert_true(units_of(c->segment[c->segments - 1], d) == 0 ||
				    limit_of(c, d) == UINT64_MAX);
}

static void a_dataset_ends(void **state)
{
	struct cursor c = begin(0, 2, 0, NULL, 0);
	uint64_t position, unserved, block;

	(void)state;
	/* code: 6640 samples, 256 a block: the 26th block would be the one beyond. */
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

/* Two that end in one block, and one that would end in its first. */
static void datasets_end_together(void **state)
{
	struct cursor_source sources[] = {source("a", 1, 5000, 1), source("b", 1, 5000, 1),
		source("tiny", 1, 10, 3), source("rest", 1, 1000, 0)};
	uint64_t position, unserved;
	struct fault why;
	struct cursor c;

	(void)state;
	assert_true(begin_as(&c, sources, 4, 0, 0, NULL, 0, &why));
	assert_int_equal(c.segments, 2);
	check_units(c.segment[0], 0, W(1, 1, 0, 1));
	check_units(c.segment[1], 14 * 1024, W(0, 0, 0, 1));
	assert_true(cursor_unserved(&c, 2, &position, &unserved));
	assert_int_equal(position, 0);
	assert_int_equal(unserved, 30);
	check_limits(&c, NULL, 0);
	cursor_free(&c);
}

static void steps_and_limits(void **state)
{
	/* code ends in the first mix, and the second one names it again, in vain; math ends in the
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
	/* The two mixes behind it change nothing then: what is left of math is no half of a block.
	 * For a thousandth of many it will do. */
	assert_int_equal(c.segments, 6);
	check_units(c.segment[4], 204800, W(.999, 0, .001));
	check_units(c.segment[5], c.segment[5]->start, W(1, 0, 0));
	assert_true(c.segment[5]->start > 204800 + 5 * 1024);
	assert_true(cursor_unserved(&c, 2, &position, &unserved));
	assert_int_equal(position, c.segment[5]->start);
	assert_in_range(unserved, 0, 1);
	cursor_free(&c);
}

static void limits_of_a_stream_with_an_end(void **state)
{
	struct cursor_source sources[] = {source("web", 3, 1000, 1), source("code", 1, 1000, 1)};
	uint64_t position, unserved;
	struct fault why;
	struct cursor c;

	(void)state;
	/* Both have weight to the end: fine. */
	assert_true(begin_as(&c, sources, 2, 0, 1024, NULL, 0, &why));
	assert_int_equal(c.segments, 1);
	assert_false(cursor_unserved(&c, 0, &position, &unserved));
	cursor_free(&c);
	/* web's second block would be one beyond, and code's next one, all alone, is one within. */
	sources[1].windows = 1280;
	assert_true(begin_as(&c, sources, 2, 0, 2048, NULL, 0, &why));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_unserved(&c, 0, &position, &unserved));
	assert_int_equal(position, 1024);
	assert_int_equal(unserved, 1000 - 768);
	assert_false(cursor_unserved(&c, 1, &position, &unserved));
	cursor_free(&c);
	bool ok = begin_as(&c, sources, 2, 0, 2049, NULL, 0, &why);

	cursor_free(&c);
	check_why(ok, &why, "max_epochs", "from position 2048 on no dataset is left");
	assert_non_null(strstr(why.text, "epochs:"));
	ok = begin_as(&c, sources, 2, 0, 0, NULL, 0, &why);
	cursor_free(&c);
	check_why(ok, &why, "max_epochs", "2048");
	ok = begin_as(&c, sources, 2, 1, 0, NULL, 0, &why);
	cursor_free(&c);
	check_why(ok, &why, "dataset web: max_epochs", "epochs");
}

/* 2^64 samples and more are no limit. */
static void limits_without_an_end(void **state)
{
	struct cursor_source sources[] = {
		source("web", 3, UINT64_MAX, UINT64_MAX), source("code", 1, UINT64_C(1) << 62, 4)};
	struct fault why;
	uint64_t position, unserved;
	struct cursor c;

	(void)state;
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &why));
	assert_int_equal(c.segments, 1);
	assert_false(cursor_unserved(&c, 0, &position, &unserved));
	cursor_free(&c);
	sources[1].max_epochs = 1; /* would end at 2^64 */
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &why));
	assert_int_equal(c.segments, 1);
	cursor_free(&c);
	sources[1].windows--; /* in the very last block */
	assert_true(begin_as(&c, sources, 2, 0, 0, NULL, 0, &why));
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, UINT64_MAX - 1023);
	cursor_free(&c);
}

static void mixes_know_the_limits(void **state)
{
	struct cursor c = begin(0, 2, 0, NULL, 0);
	uint64_t position, unserved;
	struct fault why;

	(void)state;
	/* A mix behind the end of code: what leads there stays. */
	assert_true(cursor_mix(&c, 40960, W(1, 0, 1), &why));
	assert_int_equal(c.segments, 3);
	assert_int_equal(c.segment[1]->start, 25600);
	assert_int_equal(c.segment[2]->start, 40960);
	/* One before: code ends later with less of it. */
	assert_true(cursor_mix(&c, 1024, W(.8, .1, .1), &why));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[1], 1024, W(.8, .1, .1));
	check_units(c.segment[2], c.segment[2]->start, W(.8, 0, .1));
	assert_in_range(c.segment[2]->start, 61 * 1024, 65 * 1024);
	check_limits(&c, (const uint64_t[]){1024}, 1);
	/* Named again when it is served. */
	assert_true(cursor_seek(&c, 70000, &why));
	assert_true(cursor_unserved(&c, 1, &position, &unserved));
	struct cursor before;

	assert_true(cursor_copy(&before, &c));
	check_why(cursor_mix(&c, 81920, W(1, 1, 1), &why), &why, "dataset code: weight",
		"max_epochs (2)");
	assert_true(equal_bytes(&c, &before));
	check_why(cursor_mix(&c, 81920, W(0, 1, 0), &why), &why, "dataset code: weight",
		"leave it out");
	/* The limit may be raised. */
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 3, 0}, &why));
	assert_true(cursor_mix(&c, 81920, W(1, 1, 1), &why));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], c.segment[2]->start, W(1, 0, 1));
	/* And set below what was served: then it ends as soon as it can. */
	assert_true(cursor_seek(&c, 82000, &why));
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 1, 0}, &why));
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, 81920 + 1024);
	assert_true(cursor_unserved(&c, 1, &position, &unserved));
	assert_int_equal(unserved, 0);
	cursor_free(&before);
	cursor_free(&c);
}

/* An end that is due where the cursor stands is the current mix already. */
static void limits_that_act_at_once(void **state)
{
	struct cursor c = begin(0, 0, 0, NULL, 0);
	struct fault why;

	(void)state;
	assert_true(cursor_seek(&c, 30720, &why));
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){0, 1, 0}, &why));
	assert_int_equal(c.segments, 1);
	assert_int_equal(c.segment[0]->start, 30720);
	assert_int_equal(c.segment[0]->units[1], 0);
	check_why(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){1, 1, 1}, &why), &why,
		"max_epochs", "31744");
	cursor_free(&c);
}

static void limits_of_newcomers(void **state)
{
	struct cursor_source late = source("late", 0, 1000, 2);
	struct cursor c = begin(0, 0, 0, NULL, 0);
	uint64_t position, unserved;
	struct fault why;

	(void)state;
	assert_true(cursor_add(&c, &late, &why));
	assert_int_equal(c.segments, 1);
	assert_true(cursor_mix(&c, 4096, W(1, 0, 0, 1), &why));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], 4096 + 3 * 1024, W(1, 0, 0, 0));
	assert_true(cursor_unserved(&c, 3, &position, &unserved));
	assert_int_equal(unserved, 2000 - 3 * 512);
	cursor_free(&c);
}

/* ---- removing ---- */

static void removing(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, .25, .5, .25), AT(8192, 1, 0, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), plain;
	struct fault why;

	(void)state;
	assert_true(cursor_copy(&plain, &c));
	assert_true(cursor_remove(&c, 1, 3072, &why));
	assert_int_equal(c.datasets, 3);
	assert_int_equal(c.segments, 4);
	assert_int_equal(c.segment[1]->start, 2048);
	assert_memory_equal(c.segment[1]->units, plain.segment[1]->units, 24); /* until there */
	check_units(c.segment[2], 3072, W(1, 0, 0));
	check_units(c.segment[3], 4096, W(1, 0, 1)); /* and the one from 8192 on is the same then */
	cursor_free(&c);
	/* Where another one begins anyway. */
	assert_true(cursor_copy(&c, &plain));
	assert_true(cursor_remove(&c, 0, 4096, &why));
	assert_int_equal(c.segments, 4);
	check_units(c.segment[1], 2048, W(.5, .5, 0));
	check_units(c.segment[2], 4096, W(0, .5, .25));
	check_units(c.segment[3], 8192, W(0, 0, 1));
	/* And where it has weight only there. */
	assert_true(cursor_schedule(&c, NULL,
		(const struct cursor_step[]){
			AT(2048, 1, 1, 0), AT(4096, 1, 1, 2), AT(8192, 2, 1, 0)},
		3, NULL, &why));
	assert_true(cursor_remove(&c, 2, 4096, &why));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[1], 2048, W(1, 1, 0));
	check_units(c.segment[2], 8192, W(2, 1, 0));
	cursor_free(&c);
	cursor_free(&plain);
}

static void removals_refused(void **state)
{
	const struct cursor_step steps[] = {
		AT(2048, .5, .5, 0), AT(4096, 0, 1, 0), AT(8192, 1, 0, 1)};
	struct cursor c = begin(0, 0, 0, steps, 3), before, f;
	struct cursor_source two[] = {source("web", 1, 100, 0), source("code", 1, 100, 0)};
	struct fault why;

	(void)state;
	assert_true(cursor_copy(&before, &c));
	check_why(cursor_remove(&c, 1, 1024, &why), &why, "dataset code: weight", "position 4096");
	check_why(cursor_remove(&c, 1, 8192, &why), &why, "dataset code: weight",
		"none from position 8192");
	check_why(cursor_remove(&c, 1, 5120, &why), &why, "dataset code: weight", "position 5120");
	check_why(cursor_remove(&c, 2, 1000, &why), &why, "position", "take 1024");
	check_why(cursor_remove(&c, 2, 0, &why), &why, "position", "take 1024");
	assert_true(equal_bytes(&c, &before));
	assert_true(begin_as(&f, two, 2, 1, 0, NULL, 0, &why));
	check_why(cursor_remove(&f, 1, 1024, &why), &why, "remove", "epochs");
	cursor_free(&before);
	cursor_free(&c);
	cursor_free(&f);
}

/* Without one, the others are served faster: their limits come sooner. */
static void removing_moves_the_limits(void **state)
{
	struct cursor c = begin(0, 4, 0, NULL, 0);
	struct fault why;
	uint64_t end = c.segment[1]->start;

	(void)state;
	assert_int_equal(c.segments, 2);
	assert_true(cursor_remove(&c, 0, 5120, &why));
	assert_int_equal(c.segments, 3);
	check_units(c.segment[2], c.segment[2]->start, W(0, 0, 1));
	assert_true(c.segment[2]->start < end);
	check_limits(&c, (const uint64_t[]){5120}, 1);
	check_why(cursor_remove(&c, 2, 6144, &why), &why, "dataset math: weight", "only one");
	cursor_free(&c);
}

/* ---- size ---- */

static struct cursor many(uint32_t n, uint32_t limited, struct fault *why, bool *ok)
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
	*ok = begin_as(&c, sources, n, 0, 0, NULL, 0, why);
	free(sources);
	free(names);
	return c;
}

static void a_thousand_datasets(void **state)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct fault why;
	double weights[1000];
	struct cursor back;
	bool ok;
	struct cursor c = many(1000, 5, &why, &ok);

	(void)state;
	assert_true(ok);
	assert_int_equal(c.segments, 6);
	check_limits(&c, NULL, 0);
	for (unsigned d = 0; d < 1000; d++)
		weights[d] = d % 3;
	assert_true(cursor_mix(&c, 1024, weights, &why));
	assert_true(cursor_remove(&c, 1, 1024, &why));
	size_t n = encode(&c, bytes);

	assert_true(cursor_decode(&back, bytes, n, &why));
	assert_true(equal_bytes(&back, &c));
	cursor_free(&back);
	cursor_free(&c);
	c = many(1000, 500, &why, &ok);
	check_why(ok, &why, "schedule", "1000 datasets");
	assert_non_null(strstr(why.text, "max_epochs"));
	cursor_free(&c);
	c = many(100, 99, &why, &ok);
	assert_true(ok);
	assert_in_range(c.segments, 50, 100);
	check_limits(&c, NULL, 0);
	encode(&c, bytes);
	cursor_free(&c);
}

/* As many steps as are taken can be encoded; one that is refused names its reason. */
static void the_bound_of_schedules(void **state)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct cursor_source sources[] = {source("web", .7, 12490, 0), source("code", .25, 3320, 0),
		source("math", .05, 460, 0)};
	uint32_t low = 1, high = 1 << 20;
	struct fault why;
	struct cursor c;
	size_t n = 0;

	(void)state;
	while (low + 1 < high) {
		uint32_t middle = low + (high - low) / 2;

		if (begin_as(&c, sources, 3, 0, 0,
			    &RAMP(UINT64_C(1) << 60, UINT64_C(1) << 61, middle, 0, 1, 2), 1,
			    &why)) {
			n = encode(&c, bytes);
			assert_int_equal(c.segments, 1 + middle);
			low = middle;
		} else {
			check_why(false, &why, "schedule", "fewer steps");
			high = middle;
		}
		cursor_free(&c);
	}
	assert_in_range(low, 3000, 5000);
	assert_true(n > LIMIT_CURSOR_BYTES - 1024);
}

/* ---- chains of edits ---- */

enum { BLOCKS = 48, PLACES = BLOCKS * LIMIT_BLOCK };

struct chain {
	struct rng *rng;
	struct cursor now;
	struct order_segment
		*log[2048]; /* what a daemon would have kept: later cursors cut off earlier ones */
	uint32_t logged;
	struct order_place *taken; /* [PLACES] */
	bool *is_taken;
	unsigned edits, refusals;
};

static void log_mix(struct chain *h)
{
	while (h->logged > 0 && h->log[h->logged - 1]->start >= h->now.segment[0]->start)
		order_segment_free(h->log[--h->logged]);
	for (uint32_t i = 0; i < h->now.segments; i++) {
		assert_true(h->logged < COUNT(h->log));
		h->log[h->logged++] = order_segment_copy(h->now.segment[i]);
	}
}

static struct order logged_order(const struct chain *h)
{
	struct order o = cursor_order(&h->now);

	o.segments = h->logged;
	o.segment = (const struct order_segment *const *)h->log;
	return o;
}

static void random_weights(const struct chain *h, double *weights)
{
	uint64_t position, unserved;

	for (uint32_t d = 0; d < h->now.datasets; d++) {
		bool ended =
			cursor_unserved(&h->now, d, &position, &unserved) && unserved < LIMIT_BLOCK;

		weights[d] = rng_below(h->rng, ended ? 20 : 3) > (ended ? 18 : 0)
				     ? (double)(1 + rng_below(h->rng, 9))
				     : 0;
	}
	weights[0] += rng_below(h->rng, 4) > 0; /* the one without a limit */
}

static bool random_schedule(struct chain *h, struct fault *why)
{
	double weights[4][8];
	struct cursor_step steps[4];
	uint32_t n = (uint32_t)rng_below(h->rng, 5);
	uint64_t at = rng_below(h->rng, 4) ? h->now.next / 1024 * 1024 : 0, limits[8];

	for (uint32_t i = 0; i < n; i++) {
		random_weights(h, weights[i]);
		at += 1024 * (1 + rng_below(h->rng, 5));
		steps[i] = (struct cursor_step){at, at, 1, weights[i]};
		if (rng_below(h->rng, 2)) {
			at = steps[i].to += 1024 * (1 + rng_below(h->rng, 6));
			steps[i].steps =
				1 + (uint32_t)rng_below(h->rng, (at - steps[i].from) / 1024);
		}
	}
	for (uint32_t d = 0; d < h->now.datasets; d++)
		limits[d] = h->now.dataset[d].max_epochs;
	return cursor_schedule(&h->now, NULL, steps, n, rng_below(h->rng, 2) ? limits : NULL, why);
}

static bool random_edit(struct chain *h, struct fault *why)
{
	struct cursor *c = &h->now;
	double weights[8];
	char name[8];
	uint64_t at = cursor_mix_at(c) + 1024 * (rng_below(h->rng, 3) ? 0 : rng_below(h->rng, 6));
	struct cursor_source late;

	switch (rng_below(h->rng, 8)) {
	case 0:
	case 1:
		random_weights(h, weights);
		return cursor_mix(c, at, weights, why);
	case 2:
		snprintf(name, sizeof(name), "d%u", c->datasets);
		late = source(name, 0, 200 + rng_below(h->rng, 9000), rng_below(h->rng, 3));
		return c->datasets == 8 || cursor_add(c, &late, why);
	case 3:
		return cursor_remove(c, (uint32_t)rng_below(h->rng, c->datasets), at, why);
	case 4:
		return random_schedule(h, why);
	case 5:
		return cursor_skip(c, rng_below(h->rng, 2500), why);
	case 6:
		return cursor_rewind(c,
			rng_below(h->rng, 4)
				? c->next - rng_below(h->rng, c->next - c->segment[0]->start + 1)
				: rng_below(h->rng, c->next + 2),
			why);
	default:
		return cursor_seek(c, c->next + rng_below(h->rng, 1024), why);
	}
}

/* What ranks do between two edits. */
static void take(struct chain *h, uint64_t n)
{
	struct order o = cursor_order(&h->now);
	struct fault why;

	for (uint64_t p = h->now.next; p < h->now.next + n && p < PLACES && p < cursor_end(&h->now);
		p++) {
		assert_true(order_at(&o, p, &h->taken[p]));
		h->is_taken[p] = true;
	}
	if (h->now.next + n <= cursor_end(&h->now))
		assert_true(cursor_seek(&h->now, h->now.next + n, &why));
}

static bool same_place(const struct order_place *a, const struct order_place *b)
{
	return a->dataset == b->dataset && a->epoch == b->epoch && a->window == b->window;
}

/* Over all segments: no gap, no repeat, no more than the limits, there and back. */
static void check_chain(const struct chain *h)
{
	struct order o = logged_order(h);
	uint64_t count[8] = {0}, most[8] = {0}, back;
	uint64_t end = cursor_end(&h->now) < PLACES ? cursor_end(&h->now) / 1024 * 1024 : PLACES;
	static bool seen[8][PLACES];

	memset(seen, 0, sizeof(seen));
	for (uint64_t p = 0; p < end; p++) {
		struct order_place place;

		assert_true(order_at(&o, p, &place));
		if (h->is_taken[p] && !same_place(&place, &h->taken[p]))
			fail_msg(
				"position %llu was taken as another sample", (unsigned long long)p);
		assert_true(order_when(&o, &place, &back));
		assert_int_equal(back, p);

		const struct order_dataset *d = &o.dataset[place.dataset];
		uint64_t ordinal = place.epoch * d->windows +
				   order_unwindow(d, o.seed, place.epoch, place.window);

		assert_true(ordinal < PLACES && !seen[place.dataset][ordinal]);
		seen[place.dataset][ordinal] = true;
		count[place.dataset]++;
		if (ordinal >= most[place.dataset])
			most[place.dataset] = ordinal + 1;
	}
	for (uint32_t d = 0; d < h->now.datasets; d++) {
		assert_int_equal(count[d], most[d]);
		assert_true(count[d] <= limit_of(&h->now, d));
	}
}

static void run_chain(struct chain *h, struct rng *rng)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct cursor_source sources[8];
	struct cursor before, back;
	struct fault why;
	char names[8][8];
	uint32_t n = 1 + (uint32_t)rng_below(rng, 6);

	h->rng = rng;
	for (uint32_t d = 0; d < n; d++) {
		snprintf(names[d], sizeof(names[d]), "d%u", d);
		sources[d] = source(names[d], 1 + (double)rng_below(rng, 9),
			100 + rng_below(rng, 9000), d ? rng_below(rng, 4) : 0);
	}
	assert_true(begin_as(&h->now, sources, n, 0,
		rng_below(rng, 4) ? 0 : PLACES - rng_below(rng, 20000), NULL, 0, &why));
	log_mix(h);
	while (h->now.next < PLACES - 8192 && h->now.next < cursor_end(&h->now) &&
		h->edits + h->refusals < 200) {
		take(h, rng_below(rng, 3000));
		assert_true(cursor_copy(&before, &h->now));
		if (random_edit(h, &why)) {
			h->edits++;
		} else {
			h->refusals++;
			assert_true(why.field[0] && why.text[0] && equal_bytes(&before, &h->now));
		}
		cursor_free(&before);
		log_mix(h);
		/* After a rewind what lay ahead was never taken, or will be taken again. */
		memset(h->is_taken + h->now.next, 0,
			h->now.next < PLACES ? PLACES - h->now.next : 0);
		/* It goes on from its bytes. */
		size_t length = encode(&h->now, bytes);

		assert_true(cursor_decode(&back, bytes, length, &why));
		assert_true(equal_bytes(&back, &h->now));
		assert_int_equal(
			cursor_fingerprint(&back, 3, 4), cursor_fingerprint(&h->now, 3, 4));
		cursor_free(&h->now);
		h->now = back;
	}
	check_chain(h);
}

static void chains_of_edits(void **state)
{
	struct rng rng = {4};
	unsigned edits = 0, refusals = 0, segments = 0;

	(void)state;
	for (unsigned i = 0; i < 150; i++) {
		struct chain h = {
			.taken = calloc(PLACES, sizeof(*h.taken)), .is_taken = calloc(PLACES, 1)};

		assert_non_null(h.taken);
		assert_non_null(h.is_taken);
		run_chain(&h, &rng);
		edits += h.edits;
		refusals += h.refusals;
		segments += h.logged;
		while (h.logged > 0)
			order_segment_free(h.log[--h.logged]);
		cursor_free(&h.now);
		free(h.taken);
		free(h.is_taken);
	}
	print_message("%u edits, %u refused, %u segments\n", edits, refusals, segments);
	assert_true(edits > 1000 && refusals > 20 && segments > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_become_segments),
		cmocka_unit_test(ramps),
		cmocka_unit_test(a_ramp_in_numbers),
		cmocka_unit_test(ramps_follow_each_other),
		cmocka_unit_test(what_changes_nothing_is_no_segment),
		cmocka_unit_test(schedules_refused),
		cmocka_unit_test(a_schedule_in_the_middle),
		cmocka_unit_test(a_schedule_with_no_block_left),
		cmocka_unit_test(a_dataset_ends),
		cmocka_unit_test(datasets_end_one_after_the_other),
		cmocka_unit_test(datasets_end_together),
		cmocka_unit_test(steps_and_limits),
		cmocka_unit_test(limits_of_a_stream_with_an_end),
		cmocka_unit_test(limits_without_an_end),
		cmocka_unit_test(mixes_know_the_limits),
		cmocka_unit_test(limits_that_act_at_once),
		cmocka_unit_test(limits_of_newcomers),
		cmocka_unit_test(removing),
		cmocka_unit_test(removals_refused),
		cmocka_unit_test(removing_moves_the_limits),
		cmocka_unit_test(a_thousand_datasets),
		cmocka_unit_test(the_bound_of_schedules),
		cmocka_unit_test(chains_of_edits),
	};

	return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
