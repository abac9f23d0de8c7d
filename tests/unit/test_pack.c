/* MessagePack in fixed memory: values are decoded as they were encoded, and hostile bytes are
 * errors. */
#include "proto/pack.h"

#include "proto/limits.h"
#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Unpacks a copy of exactly @n bytes, so that a sanitizer sees any byte read past them. */
static int unpack_exact(const void *bytes, size_t n, struct value *values, size_t max)
{
	char *copy = malloc(n ? n : 1);
	int count;

	assert_non_null(copy);
	if (n)
		memcpy(copy, bytes, n);
	count = unpack(copy, n, values, max);
	free(copy);
	return count;
}

/* Unpacks a single number. */
static struct value number(const char *bytes, size_t n)
{
	struct value v;

	assert_int_equal(unpack_exact(bytes, n, &v, 1), 1);
	return v;
}
#define NUMBER(text) number(text, sizeof(text) - 1)

static void unsigned_numbers_have_the_shortest_form(void **state)
{
	static const uint64_t edges[] = {0, 127, 128, 255, 256, 65535, 65536, UINT32_MAX,
		UINT64_C(1) << 32, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
	static const size_t lengths[] = {1, 1, 2, 2, 3, 3, 5, 5, 9, 9, 9, 9};

	(void)state;
	for (size_t i = 0; i < COUNT(edges); i++) {
		char bytes[16];
		struct pack p = pack_into(bytes, sizeof(bytes));

		pack_uint(&p, edges[i]);
		assert_false(p.full);
		assert_int_equal(
			p.length, lengths[i]); /* the shortest form: equal values, equal bytes */
		struct value v = number(bytes, p.length);

		assert_int_equal(v.type, VALUE_UINT);
		assert_int_equal(v.number, edges[i]);
	}
}

static void overlong_numbers_are_the_same_number(void **state)
{
	(void)state;
	assert_int_equal(NUMBER("\xcc\x05").number, 5);
	assert_int_equal(NUMBER("\xcd\x00\x05").number, 5);
	assert_int_equal(NUMBER("\xce\x00\x00\x00\x05").number, 5);
	assert_int_equal(NUMBER("\xcf\x00\x00\x00\x00\x00\x00\x00\x05").number, 5);
}

static void check_signed(struct value v, int64_t expected)
{
	assert_int_equal(v.type, expected < 0 ? VALUE_NEGATIVE : VALUE_UINT);
	if (expected < 0)
		assert_true(v.negative == expected);
	else
		assert_true(v.number == (uint64_t)expected);
}

static void signed_numbers_are_read(void **state)
{
	(void)state;
	check_signed(NUMBER("\xff"), -1);
	check_signed(NUMBER("\xe0"), -32);
	check_signed(NUMBER("\xd0\x80"), INT8_MIN);
	check_signed(NUMBER("\xd0\x7f"), INT8_MAX);
	check_signed(NUMBER("\xd1\x80\x00"), INT16_MIN);
	check_signed(NUMBER("\xd1\x7f\xff"), INT16_MAX);
	check_signed(NUMBER("\xd2\x80\x00\x00\x00"), INT32_MIN);
	check_signed(NUMBER("\xd2\x7f\xff\xff\xff"), INT32_MAX);
	check_signed(NUMBER("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), INT64_MIN);
	check_signed(NUMBER("\xd3\x7f\xff\xff\xff\xff\xff\xff\xff"), INT64_MAX);
}

static void floats_and_constants_are_read(void **state)
{
	(void)state;
	assert_true(NUMBER("\xca\x3f\xc0\x00\x00").real == 1.5);
	assert_true(NUMBER("\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00").real == -1.5);
	assert_true(isnan(NUMBER("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00").real));
	assert_int_equal(NUMBER("\xca\x3f\xc0\x00\x00").type, VALUE_DOUBLE);
	assert_int_equal(NUMBER("\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00").type, VALUE_DOUBLE);
	assert_int_equal(NUMBER("\xc0").type, VALUE_NIL);
	assert_int_equal(NUMBER("\xc2").type, VALUE_BOOL);
	assert_int_equal(NUMBER("\xc2").number, 0);
	assert_int_equal(NUMBER("\xc3").type, VALUE_BOOL);
	assert_int_equal(NUMBER("\xc3").number, 1);
}

/* {"a": [1, 300], "bin": …, "m": {}} */
static size_t sample(char *bytes, size_t capacity)
{
	struct pack p = pack_into(bytes, capacity);

	pack_map(&p, 3);
	pack_text(&p, "a", 1);
	pack_array(&p, 2);
	pack_uint(&p, 1);
	pack_uint(&p, 300);
	pack_text(&p, "bin", 3);
	pack_bytes(&p, "\0\1\2", 3);
	pack_text(&p, "m", 1);
	pack_map(&p, 0);
	return p.full ? 0 : p.length;
}

static void containers_are_read_in_document_order(void **state)
{
	static const enum value_type types[] = {VALUE_MAP, VALUE_TEXT, VALUE_ARRAY, VALUE_UINT,
		VALUE_UINT, VALUE_TEXT, VALUE_BYTES, VALUE_TEXT, VALUE_MAP};
	char bytes[64];
	struct value v[16];
	size_t n = sample(bytes, sizeof(bytes));
	int count = unpack(bytes, n, v, COUNT(v));

	(void)state;
	assert_int_equal(count, COUNT(types));
	for (int i = 0; i < count; i++)
		assert_int_equal(v[i].type, types[i]);
	assert_int_equal(v[0].count, 3);
	assert_int_equal(v[2].count, 2);
	assert_int_equal(v[4].number, 300);
	assert_int_equal(v[8].count, 0);
	assert_true(value_is(&v[5], "bin"));
	assert_false(value_is(&v[5], "bi"));
	assert_false(value_is(&v[5], "bin2"));
	assert_false(value_is(&v[6], "bin"));
}

static void skip_finds_the_next_value(void **state)
{
	char bytes[64];
	struct value v[16];
	int count = unpack(bytes, sample(bytes, sizeof(bytes)), v, COUNT(v));
	const struct value *end = v + count;

	(void)state;
	assert_ptr_equal(value_skip(v, end), end);
	assert_ptr_equal(value_skip(v + 1, end), v + 2);
	assert_ptr_equal(value_skip(v + 2, end), v + 5);
	assert_ptr_equal(value_skip(v + 8, end), end);
	v[8].count = UINT32_MAX; /* even then it stops at the end */
	assert_ptr_equal(value_skip(v + 8, end), end);
}

static void texts_are_borrowed(void **state)
{
	static const uint32_t lengths[] = {0, 1, 31, 32, 255, 256, 65535, 65536};
	size_t capacity = 1 << 17;
	char *bytes = malloc(capacity), *text = malloc(capacity);

	(void)state;
	assert_true(bytes && text);
	memset(text, 'x', capacity);
	for (size_t i = 0; i < 2 * COUNT(lengths); i++) {
		struct pack p = pack_into(bytes, capacity);
		struct value v;
		bool is_text = i % 2;

		if (is_text)
			pack_text(&p, text, lengths[i / 2]);
		else
			pack_bytes(&p, text, lengths[i / 2]);
		assert_int_equal(unpack(bytes, p.length, &v, 1), 1);
		assert_int_equal(v.type, is_text ? VALUE_TEXT : VALUE_BYTES);
		assert_int_equal(v.count, lengths[i / 2]);
		if (v.count == 0)
			continue;
		assert_true(v.bytes >= bytes && v.bytes + v.count == bytes + p.length);
		assert_memory_equal(v.bytes, text, v.count);
	}
	free(bytes);
	free(text);
}

static void packing_never_passes_the_end(void **state)
{
	char bytes[64];
	size_t whole = sample(bytes, sizeof(bytes));

	(void)state;
	assert_true(whole > 0);
	for (size_t capacity = 0; capacity <= whole; capacity++) {
		char *exact = malloc(capacity ? capacity : 1);

		assert_int_equal(sample(exact, capacity), capacity == whole ? whole : 0);
		free(exact);
	}
}

static void full_stays_full(void **state)
{
	char bytes[4];
	struct pack p = pack_into(bytes, sizeof(bytes));

	(void)state;
	pack_text(&p, "long", 4);
	assert_true(p.full);
	pack_uint(&p, 1);
	assert_true(p.full);
}

static void bytes_cut_short_anywhere_are_malformed(void **state)
{
	char bytes[64];
	struct value v[16];
	size_t n = sample(bytes, sizeof(bytes));

	(void)state;
	for (size_t cut = 0; cut < n; cut++)
		assert_int_equal(unpack_exact(bytes, cut, v, COUNT(v)), UNPACK_MALFORMED);
	assert_int_equal(unpack_exact(bytes, n, v, COUNT(v)), 9);
}

static void trailing_bytes_are_malformed(void **state)
{
	char bytes[65];
	struct value v[16];
	size_t n = sample(bytes, sizeof(bytes));

	(void)state;
	bytes[n] = 0;
	assert_int_equal(unpack_exact(bytes, n + 1, v, COUNT(v)), UNPACK_MALFORMED);
}

static void too_many_values_are_refused(void **state)
{
	char bytes[64];
	struct value v[16];
	size_t n = sample(bytes, sizeof(bytes));

	(void)state;
	for (size_t max = 0; max < 9; max++)
		assert_int_equal(unpack_exact(bytes, n, v, max), UNPACK_MANY);
}

/* @depth containers, the innermost holding one number. */
static int nested(unsigned depth, char container)
{
	char bytes[64];
	struct value v[64];
	size_t n = 0;

	for (unsigned i = 0; i < depth; i++) {
		bytes[n++] = container;
		if (container == '\x81')
			bytes[n++] = 1;
	}
	bytes[n++] = 7;
	return unpack_exact(bytes, n, v, COUNT(v));
}

static void depth_is_limited(void **state)
{
	(void)state;
	assert_int_equal(LIMIT_DEPTH, 8);
	assert_int_equal(nested(8, '\x91'), 9);
	assert_int_equal(nested(9, '\x91'), UNPACK_DEPTH);
	assert_int_equal(nested(30, '\x91'), UNPACK_DEPTH);
	assert_int_equal(nested(8, '\x81'), 17);
	assert_int_equal(nested(9, '\x81'), UNPACK_DEPTH);
}

/* A closed container no longer counts: [[…], […], …] may be long. */
static void depth_is_not_length(void **state)
{
	char bytes[64];
	struct value v[64];
	struct pack p = pack_into(bytes, sizeof(bytes));

	(void)state;
	pack_array(&p, 12);
	for (unsigned i = 0; i < 12; i++) {
		pack_array(&p, 1);
		pack_map(&p, 0);
	}
	assert_int_equal(unpack(bytes, p.length, v, COUNT(v)), 25);
}

static void claimed_lengths_are_not_trusted(void **state)
{
	static const char *const claims[] = {
		"\xdb\xff\xff\xff\xff",
		"\xc6\xff\xff\xff\xff",
		"\xdd\xff\xff\xff\xff",
		"\xdf\xff\xff\xff\xff",
		"\xdd\x7f\xff\xff\xff",
		"\xdf\x7f\xff\xff\xff",
		"\xdb\x00\x01\x00\x00",
		"\xc6\x7f\xff\xff\xff",
		"\xdd\x80\x00\x00\x00",
		"\xdf\x80\x00\x00\x00",
	};
	struct value v[16];

	(void)state;
	for (size_t i = 0; i < COUNT(claims); i++) {
		char bytes[8] = {0};

		memcpy(bytes, claims[i], 5);
		assert_true(unpack_exact(bytes, 5, v, COUNT(v)) < 0);
		assert_true(unpack_exact(bytes, 8, v, COUNT(v)) < 0);
	}
}

static void extensions_are_malformed(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
	} refused[] = {
		{"\xd4\x01\x00", 3},
		{"\xd5\x01\x00\x00", 4},
		{"\xc7\x01\x01\x00", 4},
		{"\xc7\x00\x01", 3},
		{"\xc8\x00\x01\x01\x00", 5},
		{"\xc9\x00\x00\x00\x01\x01\x00", 7},
		{"\xc1", 1},
		{"\xd6\xff\x00\x00\x00\x00", 6},
	};
	struct value v[4];

	(void)state;
	for (size_t i = 0; i < COUNT(refused); i++)
		assert_int_equal(unpack_exact(refused[i].bytes, refused[i].n, v, COUNT(v)),
			UNPACK_MALFORMED);
}

static bool borrowed_inside(const struct value *v, const char *bytes, size_t n)
{
	return v->count == 0 ||
	       (v->bytes >= bytes && v->count <= n && v->bytes + v->count <= bytes + n);
}

static void random_bytes_are_safe(void **state)
{
	struct rng rng = {11};

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		char bytes[64];
		struct value v[32];
		size_t n = i % 2 ? sample(bytes, sizeof(bytes)) : rng_below(&rng, sizeof(bytes));

		for (size_t at = 0; at < (i % 2 ? 3 : n); at++)
			bytes[i % 2 ? rng_below(&rng, n) : at] = (char)rng_next(&rng);
		int count = unpack(bytes, n, v, COUNT(v));

		assert_true(count >= UNPACK_MANY && count != 0 && count <= (int)COUNT(v));
		for (int at = 0; at < count; at++)
			if (v[at].type == VALUE_TEXT || v[at].type == VALUE_BYTES)
				assert_true(borrowed_inside(&v[at], bytes, n));
		if (count > 0)
			assert_ptr_equal(value_skip(v, v + count), v + count);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unsigned_numbers_have_the_shortest_form),
		cmocka_unit_test(overlong_numbers_are_the_same_number),
		cmocka_unit_test(signed_numbers_are_read),
		cmocka_unit_test(floats_and_constants_are_read),
		cmocka_unit_test(containers_are_read_in_document_order),
		cmocka_unit_test(skip_finds_the_next_value),
		cmocka_unit_test(texts_are_borrowed),
		cmocka_unit_test(packing_never_passes_the_end),
		cmocka_unit_test(full_stays_full),
		cmocka_unit_test(bytes_cut_short_anywhere_are_malformed),
		cmocka_unit_test(trailing_bytes_are_malformed),
		cmocka_unit_test(too_many_values_are_refused),
		cmocka_unit_test(depth_is_limited),
		cmocka_unit_test(depth_is_not_length),
		cmocka_unit_test(claimed_lengths_are_not_trusted),
		cmocka_unit_test(extensions_are_malformed),
		cmocka_unit_test(random_bytes_are_safe),
	};

	return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
