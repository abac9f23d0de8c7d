/* The cursor as a value: its beginning and its edits. tests/prove (chains, orders) shows that edits
 * keep what was served, and neither repeat nor lose a sample. */
#include "proto/cursor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

/* ---- beginning ---- */

static void a_new_cursor_is_the_specified_one(void **state)
{
	struct cursor c = begin(), f = begin_as(2, 0), s = begin_as(0, 5000);

	(void)state;
	assert_int_equal(c.next, 0);
	assert_int_equal(c.datasets, 3);
	assert_int_equal(cursor_end(&c), UINT64_MAX);
	assert_int_equal(cursor_end(&f), 2 * 1627);
	assert_int_equal(cursor_end(&s), 5000);
	assert_true(same_place(at(&c, 0), (struct order_place){1, 0, 52}));
	assert_true(same_place(at(&s, 1024), (struct order_place){0, 0, 512}));
	assert_int_equal(cursor_find(&c, "math"), 2);
	assert_int_equal(cursor_find(&c, "maths"), -1);
	cursor_free(&c);
	cursor_free(&f);
	cursor_free(&s);
}

static void epochs_are_the_specified_ones(void **state)
{
	struct cursor c = begin_as(1, 0);

	(void)state;
	assert_true(same_place(at(&c, 0), (struct order_place){0, 0, 588}));
	assert_true(same_place(at(&c, 1626), (struct order_place){1, 0, 26}));
	cursor_free(&c);
}

static void refuse_source(const struct cursor_source *changed, uint64_t epochs, const char *field)
{
	struct cursor_source sources[3];
	struct cursor id = identity(epochs, 0), c;
	struct fault fault;
	bool ok;

	memcpy(sources, three, sizeof(sources));
	sources[1] = *changed;
	ok = cursor_begin(&c, &id, sources, 3, NULL, 0, &fault);
	assert_refused(&c, ok, &fault, field, "");
}

static void begin_refuses_a_dataset(void **state)
{
	struct cursor_source s;

	(void)state;
#define WITH(change, epochs, field) (s = three[1], s.change, refuse_source(&s, epochs, field))
	WITH(weight = NAN, 0, "dataset code: weight");
	WITH(weight = -1, 0, "dataset code: weight");
	WITH(weight = INFINITY, 0, "dataset code: weight");
	WITH(weight = 1e-12, 0, "dataset code: weight");
	WITH(windows = 0, 0, "dataset code: weight");
	WITH(windows = UINT64_MAX, 2, "epochs");
	WITH(block = 0, 0, "dataset code: block");
	WITH(block = (UINT32_C(1) << 31) + 1, 0, "dataset code: block");
	WITH(group = 0, 0, "dataset code: group");
	WITH(name = "web", 0, "dataset web: name");
	WITH(name = "", 0, "dataset : name");
	WITH(name = "a\nb", 0, "dataset a?b: name"); /* a field is one line */
#undef WITH
}

static void begin_refuses_an_identity(void **state)
{
	struct cursor id, c;
	struct fault fault;
	bool ok;

	(void)state;
#define WITH(change, field)                                                                        \
	(id = identity(0, 0), id.change, ok = cursor_begin(&c, &id, three, 3, NULL, 0, &fault),    \
		assert_refused(&c, ok, &fault, field, ""))
	WITH(seq_len = 0, "seq_len");
	WITH(stride = 0, "stride");
	WITH(extra = UINT64_MAX, "extra");
	WITH(stream[0] = 0, "stream");
	WITH(epochs = id.samples = 1, "samples");
#undef WITH
	id = identity(0, 0);
	ok = cursor_begin(&c, &id, three, 0, NULL, 0, &fault);
	assert_refused(&c, ok, &fault, "datasets", "");
}

static void begin_refuses_weights_that_are_all_0(void **state)
{
	struct cursor_source sources[3];
	struct cursor id = identity(0, 0), c;
	struct fault fault;
	bool ok;

	(void)state;
	memcpy(sources, three, sizeof(sources));
	sources[0].weight = sources[1].weight = sources[2].weight = 0;
	ok = cursor_begin(&c, &id, sources, 3, NULL, 0, &fault);
	assert_refused(&c, ok, &fault, "weights", "");
}

/* An empty dataset is allowed if its weight is 0. */
static void begin_allows_an_empty_dataset(void **state)
{
	struct cursor_source sources[3];
	struct cursor id = identity(1, 0), c;
	struct fault fault;

	(void)state;
	memcpy(sources, three, sizeof(sources));
	sources[1].windows = 0;
	assert_true(cursor_begin(&c, &id, sources, 3, NULL, 0, &fault));
	assert_int_equal(cursor_end(&c), 1249 + 46);
	cursor_free(&c);
	id = identity(0, 0);
	sources[1].weight = 0;
	assert_true(cursor_begin(&c, &id, sources, 3, NULL, 0, &fault));
	cursor_free(&c);
}

/* ---- edits ---- */

static void skip_moves_forwards(void **state)
{
	struct cursor c = begin(), s = begin_as(0, 5000), same = begin();
	struct fault fault;
	bool ok;

	(void)state;
	assert_true(cursor_skip(&c, 0, &fault));
	assert_true(equal_bytes(&c, &same));
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &fault));
	assert_true(cursor_skip(&c, 2047, &fault));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_skip(&c, 1, &fault));
	assert_int_equal(c.segment[0]->start, 2048);
	assert_int_equal(c.next, 2048);
	assert_true(cursor_skip(&c, UINT64_MAX - 2048, &fault));
	ok = cursor_skip(&c, 1, &fault);
	assert_refused(&c, ok, &fault, "samples", "must be at most 0");
	assert_true(cursor_skip(&s, 4000, &fault));
	assert_false(cursor_skip(&s, UINT64_MAX, &fault));
	assert_int_equal(s.next, 4000);
	ok = cursor_skip(&s, 1001, &fault);
	assert_refused(&s, ok, &fault, "samples", "must be at most 1000");
	cursor_free(&same);
}

static void rewind_moves_backwards(void **state)
{
	struct cursor c = begin();
	struct fault fault;

	(void)state;
	assert_true(cursor_seek(&c, 3000, &fault));
	assert_true(cursor_mix(&c, 4096, (double[]){1, 1, 1}, &fault));
	assert_true(cursor_rewind(&c, 3000, &fault));
	assert_true(cursor_rewind(&c, 10, &fault));
	assert_int_equal(c.next, 10);
	assert_int_equal(c.segments, 2); /* the announced mix stays pending */
	assert_false(cursor_rewind(&c, 11, &fault));
	assert_string_equal(fault.field, "position");
	assert_non_null(strstr(fault.text, "ahead"));
	assert_true(cursor_seek(&c, 5000, &fault));
	bool ok = cursor_rewind(&c, 4095, &fault);

	assert_refused(&c, ok, &fault, "position", "4096");
}

static void a_source_makes_an_equal_dataset(void **state)
{
	struct cursor a = begin_limited(0), b = begin_limited(0);
	struct cursor_source source;
	struct fault fault;

	(void)state;
	for (uint32_t d = 0; d < 3; d++) {
		cursor_source(&a, d, &source);
		assert_string_equal(source.name, three[d].name);
		assert_int_equal(source.windows, three[d].windows);
		assert_int_equal(source.digest, three[d].digest);
		assert_int_equal(source.block, three[d].block);
		assert_int_equal(source.group, three[d].group);
		assert_int_equal(source.shuffle, three[d].shuffle);
		assert_int_equal(source.slide, three[d].slide);
		assert_int_equal(source.max_epochs, d ? d + 1 : 0);
		assert_true(source.weight == 0);
	}
	source = late;
	source.max_epochs = 7;
	assert_true(cursor_add(&a, &source, &fault));
	cursor_source(&a, 3, &source);
	assert_int_equal(source.max_epochs, 7);
	assert_true(cursor_add(&b, &source, &fault));
	assert_true(equal_bytes(&a, &b));
	cursor_free(&a);
	cursor_free(&b);
}

static void seek_moves_anywhere_in_the_mix(void **state)
{
	struct cursor c = begin(), f = begin_as(1, 0);
	struct fault fault;

	(void)state;
	assert_true(cursor_seek(&c, UINT64_MAX, &fault));
	assert_true(cursor_seek(&c, 0, &fault));
	assert_true(cursor_seek(&f, 1627, &fault)); /* the end itself is a valid position */
	assert_false(cursor_seek(&f, 1628, &fault));
	assert_string_equal(fault.field, "position");
	assert_non_null(strstr(fault.text, "1628"));
	assert_non_null(strstr(fault.text, "1627"));
	assert_int_equal(f.next, 1627);
	cursor_free(&c);
	cursor_free(&f);
}

static void seek_past_a_pending_mix_makes_it_current(void **state)
{
	struct cursor c = begin();
	struct fault fault;

	(void)state;
	assert_true(cursor_mix(&c, 2048, (double[]){.5, .3, .2}, &fault));
	struct order_place before = at(&c, 2047), after = at(&c, 2048), later = at(&c, 5000);

	assert_true(same_place(before, (struct order_place){1, 0, 4}));
	assert_true(same_place(after, (struct order_place){1, 1, 277}));
	assert_true(cursor_seek(&c, 2047, &fault));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_seek(&c, 5000, &fault));
	assert_int_equal(c.segments, 1);
	assert_int_equal(c.segment[0]->start, 2048);
	assert_true(same_place(later, at(&c, 5000)));
	assert_true(
		cursor_seek(&c, 2048, &fault)); /* back to the beginning of the mix, not before */
	assert_true(same_place(after, at(&c, 2048)));
	assert_false(cursor_seek(&c, 2047, &fault));
	assert_string_equal(fault.field, "position");
	assert_non_null(strstr(fault.text, "2048"));
	assert_int_equal(c.next, 2048);
	cursor_free(&c);
}

static void a_mix_acts_at_the_next_block(void **state)
{
	static const uint64_t next[] = {0, 1, 1023, 1024, 1025, 2048},
			      acts[] = {1024, 1024, 1024, 1024, 2048, 2048};
	struct cursor c = begin();
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(next); i++) {
		assert_true(cursor_seek(&c, next[i], &fault));
		assert_int_equal(cursor_mix_at(&c), acts[i]);
	}
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &fault));
	assert_int_equal(
		cursor_mix_at(&c), 3072); /* strictly after the start of the current segment */
	assert_true(cursor_seek(&c, UINT64_MAX - 1023, &fault));
	assert_int_equal(cursor_mix_at(&c), UINT64_MAX - 1023);
	assert_true(cursor_seek(&c, UINT64_MAX - 1022, &fault));
	assert_false(cursor_mix(
		&c, cursor_mix_at(&c), (double[]){1, 1, 1}, &fault)); /* no block is left */
	cursor_free(&c);
}

static void mix_refused(
	uint64_t next, uint64_t where, const double *weights, const char *field, const char *text)
{
	struct cursor c = begin(), before;
	struct fault fault;

	assert_true(cursor_seek(&c, next, &fault));
	assert_true(cursor_copy(&before, &c));
	bool ok = cursor_mix(&c, where, weights, &fault);

	assert_true(equal_bytes(&c, &before)); /* unchanged */
	cursor_free(&before);
	assert_refused(&c, ok, &fault, field, text);
}

static void impossible_mixes_are_refused(void **state)
{
	static const double fine[] = {1, 1, 1};

	(void)state;
	mix_refused(0, 1024, (double[]){1, NAN, 1}, "dataset code: weight", "finite");
	mix_refused(0, 1024, (double[]){1, 1, -1}, "dataset math: weight", "-1");
	mix_refused(0, 1024, (double[]){INFINITY, 1, 1}, "dataset web: weight", "finite");
	mix_refused(0, 1024, (double[]){1, 1e-12, 1}, "dataset code: weight", "never served");
	mix_refused(0, 1024, (double[]){0, 0, 0}, "weights", "sum");
	mix_refused(0, 0, fine, "position", "1024");
	mix_refused(5000, 4096, fine, "position", "5120");
	mix_refused(0, 1000, fine, "position", "use 1024");
	mix_refused(0, 1025, fine, "position", "use 2048");
	mix_refused(5000, 4099, fine, "position", "use 5120");
	mix_refused(5000, 100001, fine, "position", "use 100352");
}

static void finite_streams_have_no_mix(void **state)
{
	struct cursor c = begin_as(1, 0);
	struct fault fault;

	(void)state;
	bool ok = cursor_mix(&c, 1024, (double[]){1, 1, 1}, &fault);

	assert_refused(&c, ok, &fault, "mix", "epochs");
	c = begin_as(1, 0);
	ok = cursor_add(&c, &late, &fault);
	assert_refused(&c, ok, &fault, "add", "epochs");
}

static void an_empty_dataset_gets_no_weight(void **state)
{
	struct cursor_source empty = late;
	struct cursor c = begin();
	struct fault fault;

	(void)state;
	empty.windows = 0;
	assert_true(cursor_add(&c, &empty, &fault));
	bool ok = cursor_mix(&c, 1024, (double[]){1, 1, 1, 1}, &fault);

	assert_refused(&c, ok, &fault, "dataset late: weight", "has no window");
}

static void an_added_dataset_has_no_weight(void **state)
{
	struct cursor c = begin(), plain = begin();
	struct fault fault;

	(void)state;
	assert_true(cursor_add(&c, &late, &fault));
	assert_int_equal(c.datasets, 4);
	assert_int_equal(cursor_find(&c, "late"), 3);
	for (uint64_t p = 0; p < 5000; p += 3)
		assert_true(same_place(at(&c, p), at(&plain, p)));
	assert_true(cursor_mix(&c, 1024, (double[]){0, 0, 0, 1}, &fault));
	assert_int_equal(at(&c, 1024).dataset, 3);
	bool ok = cursor_add(&c, &late, &fault);

	assert_int_equal(c.datasets, 4);
	assert_refused(&c, ok, &fault, "dataset late: name", "already");
	cursor_free(&plain);
}

/* While a mix is pending, a new dataset gets a weight only by a later mix. */
static void adding_while_a_mix_is_pending(void **state)
{
	struct cursor c = begin(), back;
	struct fault fault;

	(void)state;
	assert_true(cursor_mix(&c, 1024, (double[]){1, 2, 3}, &fault));
	struct order_place later = at(&c, 4000);

	assert_true(cursor_add(&c, &late, &fault));
	assert_true(same_place(later, at(&c, 4000)));
	struct bytes *b = encode(&c);

	assert_true(decode(&back, b->at, b->n, &fault));
	assert_true(same_place(later, at(&back, 4000)));
	assert_true(cursor_seek(&c, 1024, &fault));
	assert_true(cursor_mix(&c, 2048, (double[]){0, 0, 0, 1}, &fault));
	assert_int_equal(at(&c, 2048).dataset, 3);
	free(b);
	cursor_free(&c);
	cursor_free(&back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_cursor_is_the_specified_one),
		cmocka_unit_test(epochs_are_the_specified_ones),
		cmocka_unit_test(begin_refuses_a_dataset),
		cmocka_unit_test(begin_refuses_an_identity),
		cmocka_unit_test(begin_refuses_weights_that_are_all_0),
		cmocka_unit_test(begin_allows_an_empty_dataset),
		cmocka_unit_test(skip_moves_forwards),
		cmocka_unit_test(rewind_moves_backwards),
		cmocka_unit_test(a_source_makes_an_equal_dataset),
		cmocka_unit_test(seek_moves_anywhere_in_the_mix),
		cmocka_unit_test(seek_past_a_pending_mix_makes_it_current),
		cmocka_unit_test(a_mix_acts_at_the_next_block),
		cmocka_unit_test(impossible_mixes_are_refused),
		cmocka_unit_test(finite_streams_have_no_mix),
		cmocka_unit_test(an_empty_dataset_gets_no_weight),
		cmocka_unit_test(an_added_dataset_has_no_weight),
		cmocka_unit_test(adding_while_a_mix_is_pending),
	};

	return cmocka_run_group_tests_name("cursor", tests, NULL, NULL);
}
