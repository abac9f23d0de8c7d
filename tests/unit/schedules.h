/* Cursors with schedules and limits. Include it after cmocka.h. */
#ifndef TESTS_SCHEDULES_H
#define TESTS_SCHEDULES_H

#include "proto/cursor.h"

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

static inline struct cursor_source source(
	const char *name, double weight, uint64_t windows, uint64_t max_epochs)
{
	return (struct cursor_source){
		name, weight, windows, 7, 64, 64, ORDER_GLOBAL, false, max_epochs, 0, 0};
}

static inline bool begin_as(struct cursor *c, const struct cursor_source *sources, uint32_t n,
	uint64_t epochs, uint64_t samples, const struct cursor_step *steps, uint32_t step_count,
	struct fault *fault)
{
	struct cursor id = {.stream = "train",
		.seed = 42,
		.seq_len = 64,
		.extra = 1,
		.stride = 64,
		.epochs = epochs,
		.samples = samples};

	memset(fault, 0, sizeof(*fault));
	return cursor_begin(c, &id, sources, n, steps, step_count, fault);
}

/* Weights web .7, code .25, math .05, with these limits. */
static inline struct cursor begin(
	uint64_t web, uint64_t code, uint64_t math, const struct cursor_step *steps, uint32_t n)
{
	struct cursor_source sources[] = {source("web", .7, 12490, web),
		source("code", .25, 3320, code), source("math", .05, 460, math)};
	struct fault fault;
	struct cursor c;

	if (!begin_as(&c, sources, 3, 0, 0, steps, n, &fault))
		fail_msg("%s: %s", fault.field, fault.text);
	return c;
}

static inline size_t encode(const struct cursor *c, uint8_t *bytes)
{
	size_t n = cursor_encode(c, bytes, LIMIT_CURSOR_BYTES);

	assert_true(n > 0);
	return n;
}

static inline bool equal_bytes(const struct cursor *a, const struct cursor *b)
{
	static uint8_t x[LIMIT_CURSOR_BYTES], y[LIMIT_CURSOR_BYTES];
	size_t n = encode(a, x);

	return encode(b, y) == n && memcmp(x, y, n) == 0;
}

static inline void check_fault(
	bool ok, const struct fault *fault, const char *field, const char *text)
{
	assert_false(ok);
	assert_string_equal(fault->field, field);
	if (!strstr(fault->text, text))
		fail_msg("\"%s\" does not say \"%s\"", fault->text, text);
	assert_null(strchr(fault->text, '\n'));
}

static inline uint64_t units_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->units[d] : 0;
}

static inline uint64_t base_of(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? s->base[d] : 0;
}

static inline void check_units(const struct order_segment *s, uint64_t start, const double *weights)
{
	struct fault fault;
	uint64_t units[LIMIT_DATASETS];

	assert_int_equal(s->start, start);
	assert_true(order_units(weights, s->datasets, units, &fault));
	assert_memory_equal(s->units, units, s->datasets * sizeof(*units));
}

#endif
