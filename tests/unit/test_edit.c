/* The library's edits of cursors, and their JSON. */
#include "client/lib/tokend.h"

#include "proto/cursor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = TOKEND_CURSOR_BYTES, TEXT = 4 << 20 };

static uint8_t bytes[ROOM], out[ROOM];
static size_t length;
static char why[500], text[TEXT];

static const struct cursor_source sources[] = {
	{"web", .75, 1249, UINT64_MAX, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
	{"a \"b\\c\" é", .25, 332, 5, 8, 3, ORDER_BLOCK, true, 4, 0, 0},
	{"math", 0, 46, 7, 64, 64, ORDER_NONE, false, 0, 0, 0},
	{"late", 0, 1000, 9, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
	{"more", 0, 10, 9, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
	{"most", 0, 10, 9, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
};

static size_t begin(uint8_t *to, uint32_t n, uint64_t samples)
{
	struct cursor id = {.stream = "train",
		.seed = 42,
		.seq_len = 64,
		.extra = 1,
		.stride = 64,
		.samples = samples};
	struct fault reason;
	struct cursor c;

	assert_true(cursor_begin(&c, &id, sources, n, NULL, 0, &reason));

	size_t bytes_written = cursor_encode(&c, to, ROOM);

	cursor_free(&c);
	return bytes_written;
}

static int setup(void **state)
{
	(void)state;
	length = begin(bytes, 3, 0);
	memset(why, 0, sizeof(why));
	return 0;
}

/* An edit from @bytes to @out. */
static struct tokend_edit edit(void)
{
	return (struct tokend_edit){bytes, length, out, sizeof(out), why, sizeof(why)};
}

static struct cursor decoded(int64_t n)
{
	struct fault reason;
	struct cursor c;

	if (n < 0)
		fail_msg("%s", why);
	assert_true(cursor_decode(&c, out, (size_t)n, &reason));
	return c;
}

/* Asserts that the edit failed, with a message that begins with the field. */
static void refused(int64_t result, const char *field)
{
	size_t n = strlen(field);

	assert_int_equal(result, TOKEND_EARGUMENT);
	if (strncmp(why, field, n) != 0 || strncmp(why + n, ": ", 2) != 0)
		fail_msg("\"%s\" is not about \"%s\"", why, field);
}

static void seek_skip_and_rewind_move_the_position(void **state)
{
	struct tokend_edit e = edit();
	uint64_t position;
	int64_t n = tokend_cursor_seek(&e, 5000);

	(void)state;
	assert_int_equal(tokend_cursor_position(out, (size_t)n, &position, why, sizeof(why)), 0);
	assert_int_equal(position, 5000);
	e.to = bytes; /* in place */
	length = (size_t)tokend_cursor_skip(&e, 1000);
	e = edit();
	n = tokend_cursor_skip(&e, 1);
	assert_int_equal(tokend_cursor_position(out, (size_t)n, &position, why, sizeof(why)), 0);
	assert_int_equal(position, 1001);
	n = tokend_cursor_rewind(&e, 7);
	assert_int_equal(tokend_cursor_position(out, (size_t)n, &position, why, sizeof(why)), 0);
	assert_int_equal(position, 7);
	refused(tokend_cursor_rewind(&e, 1001), "position");
	refused(tokend_cursor_skip(&e, UINT64_MAX), "samples");
	e.why = NULL;
	assert_int_equal(tokend_cursor_rewind(&e, 1001), TOKEND_EARGUMENT);
}

static void a_mix_names_all_datasets_with_weight(void **state)
{
	static const char *const names[] = {"math", "web", "web"}, *const unknown[] = {
									   "web", "wet"};
	struct tokend_edit e = edit();
	struct cursor c = decoded(tokend_cursor_mix(&e, TOKEND_SOON, names, (double[]){1, 3}, 2));

	(void)state;
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, 1024);
	assert_int_equal(c.segment[1]->units[0], UINT64_C(3) << 30);
	assert_int_equal(c.segment[1]->units[1], 0);
	assert_int_equal(c.segment[1]->units[2], UINT64_C(1) << 30);
	cursor_free(&c);
	c = decoded(tokend_cursor_mix(&e, 4096, names, (double[]){1}, 1));
	assert_int_equal(c.segment[c.segments - 1]->start, 4096);
	cursor_free(&c);
	refused(tokend_cursor_mix(&e, 4097, names, (double[]){1, 3}, 2), "position");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, names, (double[]){1, NAN}, 2),
		"dataset web: weight");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, names, (double[]){1, -3}, 2),
		"dataset web: weight");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, names, (double[]){0, 0}, 2), "weights");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, NULL, NULL, 0), "weights");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, names, (double[]){1, 3, 1}, 3), "dataset web");
	refused(tokend_cursor_mix(&e, TOKEND_SOON, unknown, (double[]){1, 3}, 2), "dataset wet");
	assert_string_equal(why, "dataset wet: is not in the cursor; must be one of: web, "
				 "a \"b\\c\" é, math; did you mean web?");
}

static void datasets_are_added_and_removed(void **state)
{
	static uint8_t other[ROOM];
	size_t n = begin(other, 6, 0);
	struct tokend_edit e = edit();
	struct cursor c = decoded(tokend_cursor_add(&e, other, n, "late"));

	(void)state;
	assert_int_equal(c.datasets, 4);
	assert_int_equal(c.order[3].windows, 1000);
	cursor_free(&c);
	refused(tokend_cursor_add(&e, other, n, "web"), "dataset web: name");
	refused(tokend_cursor_add(&e, other, n, "wet"), "dataset wet");
	refused(tokend_cursor_add(&e, other, n - 1, "late"), "checksum");
	n = begin(other, 6, 77);
	refused(tokend_cursor_add(&e, other, n, "late"), "samples");
	c = decoded(tokend_cursor_remove(&e, sources[1].name, TOKEND_SOON));
	assert_int_equal(c.segments, 2);
	assert_int_equal(c.segment[1]->start, 1024);
	assert_int_equal(c.segment[1]->units[1], 0);
	cursor_free(&c);
	refused(tokend_cursor_remove(&e, "web", TOKEND_SOON),
		"dataset web: weight"); /* the other one has no weight from there on */
	refused(tokend_cursor_remove(&e, "math", TOKEND_SOON), "dataset math");
	refused(tokend_cursor_remove(&e, "wet", TOKEND_SOON), "dataset wet");
	refused(tokend_cursor_remove(&e, "web", 1), "position");
}

static void a_small_buffer_is_an_error_and_unchanged(void **state)
{
	static uint8_t was[ROOM];
	struct tokend_edit e = edit();
	int64_t n = tokend_cursor_seek(&e, 1);

	(void)state;
	assert_true(n > 0);
	memcpy(was, bytes, length);
	e.to = bytes;
	for (e.capacity = 0; e.capacity < (size_t)n; e.capacity++) {
		assert_int_equal(tokend_cursor_seek(&e, 1), TOKEND_EMEMORY);
		assert_non_null(strstr(why, "capacity"));
	}
	assert_memory_equal(bytes, was, length);
	assert_int_equal(tokend_cursor_seek(&e, 1), n);
}

static void json_has_every_member(void **state)
{
	static const char expected[] =
		"{\"stream\":\"train\",\"seed\":42,\"seq_len\":64,\"extra\":1,\"stride\":64,"
		"\"epochs\":0,"
		"\"samples\":0,\"next\":0,\"end\":null,\"datasets\":["
		"{\"name\":\"web\",\"windows\":1249,\"digest\":18446744073709551615,\"shuffle\":"
		"\"global\","
		"\"block\":64,\"group\":64,\"slide\":false,\"part\":null,\"path_windows\":1249,"
		"\"max_epochs\":null,\"ends_at\":null,"
		"\"unserved\":"
		"null},"
		"{\"name\":\"a \\u0022b\\u005cc\\u0022 "
		"é\",\"windows\":332,\"digest\":5,\"shuffle\":\"block\","
		"\"block\":8,\"group\":3,\"slide\":true,\"part\":null,\"path_windows\":332,\"max_"
		"epochs\":4,\"ends_at\":5120,"
		"\"unserved\":48}],"
		"\"segments\":[{\"start\":0,\"pending\":false,\"units\":[3221225472,1073741824],"
		"\"base\":[0,"
		"0]},"
		"{\"start\":5120,\"pending\":true,\"units\":[4294967296,0],\"base\":[3840,1280]}]}";
	int64_t n;

	(void)state;
	length = begin(bytes, 2, 0);
	n = tokend_cursor_show(bytes, length, text, sizeof(text), why, sizeof(why));
	assert_string_equal(text, expected);
	assert_int_equal(n, strlen(expected));
	/* The exact size works, one byte less does not. */
	for (size_t capacity = 0; capacity <= (size_t)n; capacity++) {
		char *exact = malloc(capacity ? capacity : 1);

		assert_int_equal(
			tokend_cursor_show(bytes, length, exact, capacity, why, sizeof(why)),
			TOKEND_EMEMORY);
		free(exact);
	}
	assert_int_equal(
		tokend_cursor_show(bytes, length, text, (size_t)n + 1, why, sizeof(why)), n);
	length = begin(bytes, 2, 3000);
	tokend_cursor_show(bytes, length, text, sizeof(text), why, sizeof(why));
	assert_non_null(strstr(text, "\"samples\":3000,\"next\":0,\"end\":3000,"));
	assert_non_null(strstr(text, "\"max_epochs\":4,\"ends_at\":null,\"unserved\":null"));
	bytes[20] ^= 1;
	refused(tokend_cursor_show(bytes, length, text, sizeof(text), why, sizeof(why)),
		"checksum");
}

/* The longest cursor: many pending mixes of many datasets. */
static void four_mebibytes_hold_any_json(void **state)
{
	static const uint32_t counts[] = {1, 2, 16, 100, 500, 1024};
	struct cursor id = {
		.stream = "train", .seed = UINT64_MAX, .seq_len = 64, .extra = 1, .stride = 64};
	static struct cursor_source many[LIMIT_DATASETS];
	static char names[LIMIT_DATASETS][LIMIT_NAME_BYTES + 1];
	static double one[LIMIT_DATASETS], another[LIMIT_DATASETS];
	static struct cursor_step steps[8192];
	struct fault reason;
	struct cursor c;

	(void)state;
	for (unsigned i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		uint32_t n = counts[i], low = 1, high = 8192;

		for (uint32_t d = 0; d < n; d++) {
			snprintf(names[d], sizeof(names[d]), "%.*s%u", n > 500 ? 10 : 54,
				"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\""
				"\"\"\"\"\""
				"\"\"\"\""
				"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"",
				d);
			many[d] = sources[0];
			many[d].name = names[d];
			many[d].weight = 1;
			one[d] = another[d] = 0;
		}
		one[0] = another[n - 1] = 1;
		for (uint32_t k = 0; k < 8192; k++) {
			uint64_t at = UINT64_C(1) << 63;

			at += (k + UINT64_C(1)) << 40;
			steps[k] = (struct cursor_step){at, at, 1, k % 2 ? one : another};
		}
		while (low + 1 < high) {
			uint32_t middle = low + (high - low) / 2;
			bool ok = cursor_begin(&c, &id, many, n, steps, middle, &reason);

			if (ok) {
				length = cursor_encode(&c, bytes, sizeof(bytes));
				assert_true(length > 0);
			}
			*(ok ? &low : &high) = middle;
			cursor_free(&c);
		}
		assert_true(tokend_cursor_show(
				    bytes, length, text, sizeof(text), why, sizeof(why)) > 0);
		print_message("%u datasets, %u mixes to come: %zu bytes, %zu of text\n", n, low,
			length, strlen(text));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(seek_skip_and_rewind_move_the_position, setup),
		cmocka_unit_test_setup(a_mix_names_all_datasets_with_weight, setup),
		cmocka_unit_test_setup(datasets_are_added_and_removed, setup),
		cmocka_unit_test_setup(a_small_buffer_is_an_error_and_unchanged, setup),
		cmocka_unit_test_setup(json_has_every_member, setup),
		cmocka_unit_test_setup(four_mebibytes_hold_any_json, setup),
	};

	return cmocka_run_group_tests_name("edit", tests, NULL, NULL);
}
