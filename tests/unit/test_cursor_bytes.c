/* The bytes of cursors: canonical, and readable forever. system/test_bad_cursors.py has the faults.
 */
#include "proto/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

/* Cursors of every shape: plain, finite, moved, mixed, pending, with more datasets. */
static unsigned shapes(struct cursor *c)
{
	struct fault fault;
	unsigned n = 0;

	c[n++] = begin();
	c[n++] = begin_as(3, 0);
	c[n++] = begin_as(0, 1 << 20);
	c[n] = begin();
	assert_true(cursor_seek(&c[n++], UINT64_C(1) << 62, &fault));
	c[n] = begin();
	assert_true(cursor_seek(&c[n], 1000, &fault));
	assert_true(cursor_mix(&c[n++], 2048, (double[]){.5, .3, .2}, &fault));
	c[n] = begin();
	assert_true(cursor_mix(&c[n], 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(cursor_seek(&c[n++], 3000, &fault));
	c[n] = begin();
	assert_true(cursor_add(&c[n++], &late, &fault));
	c[n] = begin();
	assert_true(cursor_add(&c[n], &late, &fault));
	assert_true(cursor_mix(&c[n++], 1024, (double[]){.5, 0, .2, 7}, &fault));
	c[n++] = begin_limited(0);
	c[n++] = begin_limited(5000);
	c[n++] = begin_parted(0);
	c[n++] = begin_parted(3);
	c[n] = begin_limited(0);
	assert_true(cursor_seek(&c[n++], 200000, &fault)); /* with limits, none pending */
	c[n] = begin();
	assert_true(cursor_schedule(&c[n++], NULL,
		(const struct cursor_step[]){{2048, 2048, 1, (double[]){1, 2, 3}},
			{4096, 8192, 3, (double[]){0, 1, 0}},
			{10240, 10240, 1, (double[]){3, 0, 1}}},
		3, NULL, &fault));
	return n;
}

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

static void cursors_survive_the_round_trip(void **state)
{
	struct cursor c[16], back;
	struct fault fault;
	unsigned n = shapes(c);

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		assert_true(decode(&back, b->at, b->n, &fault));
		assert_true(equal_bytes(&c[i], &back));
		assert_int_equal(cursor_fingerprint(&c[i], 2, 3), cursor_fingerprint(&back, 2, 3));
		assert_true(cursor_belongs(&back, &c[i], &fault));
		for (uint64_t p = c[i].next; p < c[i].next + 3000 && p < cursor_end(&c[i]); p += 7)
			assert_true(same_place(at(&c[i], p), at(&back, p)));
		cursor_free(&back);
		cursor_free(&c[i]);
		free(b);
	}
}

static void cursors_of_different_shape_have_different_bytes(void **state)
{
	struct cursor c[16];
	unsigned n = shapes(c);

	(void)state;
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < a; b++)
			assert_false(equal_bytes(&c[a], &c[b]));
	for (unsigned a = 0; a < n; a++)
		cursor_free(&c[a]);
}

/* Equal cursors have equal bytes, however they were made. */
static void equal_cursors_have_equal_bytes(void **state)
{
	struct cursor a = begin(), b = begin(), copy;
	struct fault fault;

	(void)state;
	assert_true(cursor_mix(&a, 4096, (double[]){1, 1, 1}, &fault));
	assert_true(cursor_mix(&a, 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 2047, &fault));
	assert_false(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 0, &fault));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 2048,
		&fault)); /* there the mix is the current one, as if it had just been made */
	cursor_free(&b);
	b = begin();
	assert_true(cursor_seek(&b, 2048, &fault));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_copy(&copy, &a));
	assert_true(equal_bytes(&a, &copy));
	cursor_free(&a);
	cursor_free(&b);
	cursor_free(&copy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cursors_survive_the_round_trip),
		cmocka_unit_test(version_1_is_unchanged),
		cmocka_unit_test(cursors_of_different_shape_have_different_bytes),
		cmocka_unit_test(equal_cursors_have_equal_bytes),
	};

	return cmocka_run_group_tests_name("cursor bytes", tests, NULL, NULL);
}
