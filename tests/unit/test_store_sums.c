/* Files of sums: the layout, and heads that are not believed. */
#include "daemon/store/sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct sums_head head = {
	.piece = 1 << 20, .shards = 3, .pieces = 7, .manifest = 0x0102030405060708, .checksum = 9};

static void test_layout(void **state)
{
	static const uint8_t expected[SUMS_HEAD_BYTES] = "tkdsums1"
							 "\0\0\x10\0\0\0\0\0"
							 "\3\0\0\0\0\0\0\0"
							 "\7\0\0\0\0\0\0\0"
							 "\x8\x7\x6\x5\x4\x3\x2\x1"
							 "\x9\0\0\0\0\0\0";
	uint8_t bytes[SUMS_HEAD_BYTES];
	struct sums_head got;
	struct fault fault;

	(void)state;
	sums_head_put(&head, bytes);
	assert_memory_equal(bytes, expected, sizeof(bytes));
	assert_true(sums_head_get(&got, bytes, SUMS_HEAD_BYTES + 7 * 8, &fault));
	assert_int_equal(got.piece, head.piece);
	assert_int_equal(got.shards, head.shards);
	assert_int_equal(got.pieces, head.pieces);
	assert_int_equal(got.manifest, head.manifest);
	assert_int_equal(got.checksum, head.checksum);
}

static void test_wrong_heads(void **state)
{
	static const struct {
		unsigned at;
		uint8_t byte;
		uint64_t file_bytes;
	} wrong[] = {{0, 'T', 104}, {7, '2', 104}, {8, 1, 104}, {10, 0, 104}, {12, 1, 104},
		{24, 8, 104}, {31, 0x80, 104}, {0, 't', 103}, {0, 't', 96}, {0, 't', 112},
		{0, 't', 47}, {0, 't', 0}};
	uint8_t bytes[SUMS_HEAD_BYTES];
	struct sums_head got;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		sums_head_put(&head, bytes);
		bytes[wrong[i].at] = wrong[i].byte;
		assert_false(sums_head_get(&got, bytes, wrong[i].file_bytes, &fault));
		assert_int_equal(fault.code, FAULT_DATA);
	}
}

static void test_path(void **state)
{
	char path[32];

	(void)state;
	assert_true(sums_path("a/web.jsonl", path, sizeof(path)));
	assert_string_equal(path, "a/web.sums");
	assert_true(sums_path("s3://b/web.json", path, sizeof(path)));
	assert_string_equal(path, "s3://b/web.json.sums");
	assert_false(sums_path("a/web.jsonl", path, 10));
}

/* The digest notices another size, another ETag, and lines in another order. */
static void test_manifest(void **state)
{
	uint64_t one = sums_manifest(sums_manifest(0, 5, "a"), 6, "b");

	(void)state;
	assert_int_not_equal(one, sums_manifest(sums_manifest(0, 6, "b"), 5, "a"));
	assert_int_not_equal(one, sums_manifest(sums_manifest(0, 5, "a"), 7, "b"));
	assert_int_not_equal(one, sums_manifest(sums_manifest(0, 5, "a"), 6, ""));
	assert_int_equal(sums_pieces(0, 8), 0);
	assert_int_equal(sums_pieces(8, 8), 1);
	assert_int_equal(sums_pieces(9, 8), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_layout),
		cmocka_unit_test(test_wrong_heads), cmocka_unit_test(test_path),
		cmocka_unit_test(test_manifest)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
