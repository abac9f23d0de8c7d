/*
 * Cursors that no config and no `tokctl cursor` makes: values up to 2^64, the bound on their bytes,
 * and bytes of older releases. system/test_order.py compares edits with a reference,
 * and tests/prove shows that they neither repeat nor lose a sample.
 */
#include "client/lib/tokend.h"

#include "proto/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

/* Bytes of an older tokend keep their meaning forever, and are still written if they suffice. */
static const char version_1[] = "746b646301000000ad2bb02d99a66438de0010a56f7264657201a673747265616d"
				"a5747261696ea4736565642aa77365"
				"715f6c656e40a5657874726101a673747269646540a665706f63687300a773616d"
				"706c657300a8646174617365747393"
				"97a3776562cd04e1cfb3960afe8c9f9ec60140400097a4636f6465cd014ccfe6b6"
				"4183fa5596cf0208030097a46d6174"
				"682e0700404001a46e657874cd0bb8a5737461727400a5756e69747393ceb33333"
				"33ce40000000ce0ccccccda4626173"
				"6593000000a570686173659400ce79999999ce80000000ce06666666ad70656e64"
				"696e675f7374617274cd1000ad7065"
				"6e64696e675f756e69747393ce80000000ce4ccccccdce33333333";

static void version_1_is_unchanged(void **state)
{
	struct cursor c = begin(), back;
	struct fault fault;
	struct bytes *b;
	uint8_t old[sizeof(version_1) / 2];

	(void)state;
	for (size_t i = 0; i < sizeof(old); i++)
		assert_int_equal(sscanf(version_1 + 2 * i, "%2hhx", &old[i]), 1);
	assert_true(cursor_seek(&c, 3000, &fault));
	assert_true(cursor_mix(&c, 4096, (double[]){.5, .3, .2}, &fault));
	b = encode(&c);
	assert_int_equal(b->n, sizeof(old));
	assert_memory_equal(b->at, old, sizeof(old));
	assert_true(decode(&back, old, sizeof(old), &fault));
	assert_int_equal(cursor_fingerprint(&back, 2, 8), UINT64_C(0x82dd636840d1c351));
	cursor_free(&back);
	free(b);
	/* Only cursors that need version 2 have it. */
	assert_true(cursor_schedule(&c, NULL,
		(const struct cursor_step[]){{4096, 4096, 1, (double[]){.5, .3, .2}},
			{5120, 5120, 1, (double[]){1, 1, 1}}},
		2, NULL, &fault));
	b = encode(&c);
	assert_int_equal(b->at[4], 2);
	free(b);
	assert_true(cursor_seek(&c, 4096, &fault));
	b = encode(&c);
	assert_int_equal(b->at[4], 1);
	free(b);
	cursor_free(&c);
}

/* A field is one line, whatever it quotes. */
static void a_newline_in_a_name_is_no_second_line(void **state)
{
	struct cursor_source source = three[0];
	struct cursor id = identity(0, 0), c;
	struct fault fault;

	(void)state;
	source.name = "a\nb";
	assert_false(cursor_begin(&c, &id, &source, 1, NULL, 0, &fault));
	assert_string_equal(fault.field, "dataset a?b: name");
	cursor_free(&c);
}

/* No block is left after the last positions; limits may be set there. */
static void a_mix_needs_a_block_below_2_to_the_64(void **state)
{
	const double weights[] = {1, 1, 1};
	const struct cursor_step step = {1024, 1024, 1, weights};
	struct cursor c = begin();
	struct fault fault;

	(void)state;
	assert_true(cursor_seek(&c, UINT64_MAX - 1023, &fault));
	assert_int_equal(cursor_mix_at(&c), UINT64_MAX - 1023);
	assert_true(cursor_seek(&c, UINT64_MAX - 1022, &fault));
	assert_false(cursor_mix(&c, cursor_mix_at(&c), weights, &fault));
	assert_false(cursor_schedule(&c, NULL, &step, 1, NULL, &fault));
	assert_true(cursor_schedule(&c, NULL, NULL, 0, (const uint64_t[]){1, 0, 0}, &fault));
	cursor_free(&c);
}

/* ---- size ---- */
static char why[500], text[4 << 20];

static void a_small_buffer_is_an_error_and_unchanged(void **state)
{
	struct cursor c = begin();
	struct bytes *b = encode(&c), *was = encode(&c);
	struct tokend_edit e = {b->at, b->n, b->at, sizeof(b->at), why, sizeof(why)};

	(void)state;
	for (e.capacity = 0; e.capacity < b->n; e.capacity++) {
		assert_int_equal(tokend_cursor_seek(&e, 1), TOKEND_EMEMORY);
		assert_non_null(strstr(why, "capacity"));
	}
	assert_memory_equal(b->at, was->at, b->n);
	assert_int_equal(tokend_cursor_seek(&e, 1), b->n); /* in place */
	assert_memory_not_equal(b->at, was->at, b->n);
	e.why = NULL;
	assert_int_equal(tokend_cursor_rewind(&e, 1001), TOKEND_EARGUMENT);
	free(b);
	free(was);
	cursor_free(&c);
}

/* The longest schedule that is accepted can be encoded and shown; a longer one is refused. */
static void longest_schedules_can_be_shown(void **state)
{
	static const uint32_t counts[] = {2, 1024};
	static char names[LIMIT_DATASETS][LIMIT_NAME_BYTES + 1];
	static struct cursor_source sources[LIMIT_DATASETS];
	static double one[LIMIT_DATASETS], another[LIMIT_DATASETS];
	static struct cursor_step steps[8192];
	struct cursor id = identity(0, 0), c;
	struct fault fault;

	(void)state;
	for (unsigned i = 0; i < COUNT(counts); i++) {
		uint32_t n = counts[i], low = 1, high = COUNT(steps);
		struct bytes *b = NULL;

		for (uint32_t d = 0; d < n; d++) {
			int quotes = n > 500 ? 10 : 54;

			memset(names[d], '"', (size_t)quotes);
			snprintf(names[d] + quotes, 6, "%u", d);
			sources[d] = three[0];
			sources[d].name = names[d];
			one[d] = another[d] = 0;
		}
		one[0] = another[n - 1] = 1;
		for (uint32_t k = 0; k < COUNT(steps); k++) {
			uint64_t at = (UINT64_C(1) << 63) + ((k + UINT64_C(1)) << 40);

			steps[k] = (struct cursor_step){at, at, 1, k % 2 ? one : another};
		}
		while (low + 1 < high) {
			uint32_t middle = low + (high - low) / 2;
			bool ok = cursor_begin(&c, &id, sources, n, steps, middle, &fault);

			if (ok) {
				free(b);
				b = encode(&c);
			} else {
				assert_string_equal(fault.field, "schedule");
				assert_non_null(strstr(fault.text, "fewer steps"));
			}
			*(ok ? &low : &high) = middle;
			cursor_free(&c);
		}
		assert_non_null(b);
		assert_true(
			tokend_cursor_show(b->at, b->n, text, sizeof(text), why, sizeof(why)) > 0);
		free(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(version_1_is_unchanged),
		cmocka_unit_test(a_newline_in_a_name_is_no_second_line),
		cmocka_unit_test(a_mix_needs_a_block_below_2_to_the_64),
		cmocka_unit_test(a_small_buffer_is_an_error_and_unchanged),
		cmocka_unit_test(longest_schedules_can_be_shown),
	};

	return cmocka_run_group_tests_name("cursor", tests, NULL, NULL);
}
