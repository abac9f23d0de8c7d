/* MessagePack in fixed memory: forms that Python's msgpack does not write are read too, and hostile
 * bytes are errors. */
#include "proto/pack.h"

#include "proto/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define BYTES(text)  text, sizeof(text) - 1

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

static void all_forms_of_a_value_are_read(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
		enum value_type type;
		int64_t number;
	} forms[] = {
		{BYTES("\xcc\x05"), VALUE_UINT, 5},
		{BYTES("\xcd\0\x05"), VALUE_UINT, 5},
		{BYTES("\xce\0\0\0\x05"), VALUE_UINT, 5},
		{BYTES("\xcf\0\0\0\0\0\0\0\x05"), VALUE_UINT, 5},
		{BYTES("\xd0\x80"), VALUE_OTHER, 0},
		{BYTES("\xd0\x7f"), VALUE_UINT, INT8_MAX},
		{BYTES("\xd1\x80\0"), VALUE_OTHER, 0},
		{BYTES("\xd1\x7f\xff"), VALUE_UINT, INT16_MAX},
		{BYTES("\xd2\x80\0\0\0"), VALUE_OTHER, 0},
		{BYTES("\xd2\x7f\xff\xff\xff"), VALUE_UINT, INT32_MAX},
		{BYTES("\xd3\x80\0\0\0\0\0\0\0"), VALUE_OTHER, 0},
		{BYTES("\xd3\x7f\xff\xff\xff\xff\xff\xff\xff"), VALUE_UINT, INT64_MAX},
		{BYTES("\xc2"), VALUE_OTHER, 0},
		{BYTES("\xc3"), VALUE_OTHER, 0},
		{BYTES("\xca\x3f\xc0\0\0"), VALUE_OTHER, 0},
		{BYTES("\xcb\xbf\xf8\0\0\0\0\0\0"), VALUE_OTHER, 0},
		{BYTES("\xcb\x7f\xf8\0\0\0\0\0\0"), VALUE_OTHER, 0},
		{BYTES("\xc0"), VALUE_OTHER, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(forms); i++) {
		struct value v = {0};

		assert_int_equal(unpack_exact(forms[i].bytes, forms[i].n, &v, 1), 1);
		assert_int_equal(v.type, forms[i].type);
		assert_true(v.number == (uint64_t)forms[i].number);
	}
}

static void bytes_cut_short_anywhere_are_errors(void **state)
{
	static const char sample[] = "\x82\xa1"
				     "a"
				     "\x92\x01\xcd\x01\x2c\xa3"
				     "bin"
				     "\xc4\x03\0\1\2";
	struct value v[16];
	size_t n = sizeof(sample) - 1;

	(void)state;
	for (size_t cut = 0; cut < n; cut++)
		assert_int_equal(unpack_exact(sample, cut, v, COUNT(v)), -1);
	assert_int_equal(unpack_exact(sample, n, v, COUNT(v)), 7);
	assert_int_equal(unpack_exact(sample, n, v, 6), -1);
	assert_int_equal(unpack_exact(sample, n + 1, v, COUNT(v)), -1);
}

/* @depth containers, the innermost with one number. */
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
	assert_int_equal(nested(8, '\x91'), 9);
	assert_int_equal(nested(9, '\x91'), -1);
	assert_int_equal(nested(8, '\x81'), 17);
	assert_int_equal(nested(30, '\x81'), -1);
}

/* Lengths far beyond the bytes, and extensions. */
static void claims_are_not_trusted(void **state)
{
	static const char *const claims[] = {"\xdb\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff",
		"\xdd\xff\xff\xff\xff", "\xdf\x80\1\1\1", "\xd4\1\1\1\1", "\xc7\1\1\1\1",
		"\xc1\1\1\1\1"};
	struct value v[16];

	(void)state;
	for (size_t i = 0; i < COUNT(claims); i++)
		assert_true(unpack_exact(claims[i], 5, v, COUNT(v)) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_forms_of_a_value_are_read),
		cmocka_unit_test(bytes_cut_short_anywhere_are_errors),
		cmocka_unit_test(depth_is_limited),
		cmocka_unit_test(claims_are_not_trusted),
	};

	return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
