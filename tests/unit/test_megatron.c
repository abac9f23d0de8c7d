/*
 * Megatron's .bin and .idx: how good ones are read, and the message for each of many broken ones.
 * tests/python reads files of Megatron's own builder.
 */
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"

#include <errno.h>
#include <inttypes.h>

enum {
	N = 4,
	D = 3,
	TOKENS = 9,
	HEADER = 34,
	LENGTHS = HEADER,
	POINTERS = LENGTHS + 4 * N,
	DOCUMENTS = POINTERS + 8 * N
};

/* An .idx of N sequences, and the .bin it belongs to. */
static const int32_t lengths[N] = {3, 0, 2, 4};
static const uint64_t documents[D] = {0, 2, 4};

static void put_idx(struct piece *p, unsigned type, unsigned width, const uint64_t *pointers)
{
	uint64_t at = 0;

	p->n = 0;
	piece_bytes(p, "MMIDIDX\0", 9);
	piece_number(p, 1, 8);
	piece_number(p, type, 1);
	piece_number(p, N, 8);
	piece_number(p, D, 8);
	for (int i = 0; i < N; i++)
		piece_number(p, (uint64_t)lengths[i], 4);
	for (int i = 0; i < N; at += (uint64_t)lengths[i++] * width)
		piece_number(p, pointers ? pointers[i] : at, 8);
	for (int i = 0; i < D; i++)
		piece_number(p, documents[i], 8);
}

/* Token i is 10 + i. Returns the path of the .bin. */
static const char *put_bin(struct files *f, unsigned width, size_t bytes)
{
	struct piece p = {.n = 0};

	for (uint64_t i = 0; i < TOKENS; i++)
		piece_number(&p, 10 + i, width);
	return files_put(f, "a.bin", p.at, bytes < p.n ? bytes : p.n);
}

/* NULL: @why. */
static struct shard *try_open(const char *path, const char *format, int *fd, struct fault *fault)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	const struct shard_format *f = format ? shard_format(format) : NULL;
	struct shard_facts facts;

	fault->text[0] = 0;
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	f = shard_describe(f, path, *fd, &hint, &facts, fault);
	struct shard *shard = f ? shard_open(f, path, *fd, &hint, &facts, fault) : NULL;

	if (!shard) {
		assert_true(fault->text[0]);
		assert_null(strchr(fault->text, '\n'));
		close(*fd);
	}
	return shard;
}

static void assert_refused(const char *path, const char *format, const char *expected)
{
	struct fault fault;
	int fd;
	struct shard *shard = try_open(path, format, &fd, &fault);

	if (shard)
		fail_msg("is not refused; should be: %s", expected);
	if (!strstr(fault.text, expected))
		fail_msg("\"%s\" is not in \"%s\"", expected, fault.text);
}

/* ---- good ones ---- */

/* Reads every window of @count tokens, and all boundaries, which must be @ends. */
static void assert_content(
	const char *path, const uint64_t *tokens, uint64_t count, const uint32_t *ends, bool plain)
{
	struct fault fault;
	int fd;
	uint32_t at[16];
	uint16_t out[16];
	struct shard *shard = try_open(path, NULL, &fd, &fault);
	int64_t n;

	if (!shard)
		fail_msg("%s", fault.text);
	assert_string_equal(shard->format->name, "megatron");
	assert_int_equal(shard->facts.tokens, count);
	assert_int_equal(shard->facts.documents, N);
	assert_int_equal(shard->facts.plain, plain);
	for (uint64_t from = 0; from <= count; from++)
		for (uint64_t some = 0; from + some <= count; some++) {
			assert_true(shard_read(shard, from, some, out, &fault));
			for (uint64_t i = 0; i < some; i++)
				assert_int_equal(out[i], tokens[from + i]);
			memset(out, 0, sizeof(out));
			assert_true(!files_try(fd) ||
				    shard_try(shard, shard_find(shard, from), some, out));
			for (uint64_t i = 0; files_try(fd) && i < some; i++)
				assert_int_equal(out[i], tokens[from + i]);
			n = shard_documents(shard, from, some, at, COUNT(at), &fault);
			int64_t expected = 0;

			for (const uint32_t *end = ends; *end < count; end++)
				if (*end > from && *end < from + some) {
					assert_true(expected < n);
					assert_int_equal(at[expected++] + from, *end);
				}
			assert_int_equal(n, expected);
		}
	shard_close(shard);
	close(fd);
}

static void test_types(void **state)
{
	static const struct {
		unsigned code, width;
		bool plain;
	} types[] = {{1, 1, false}, {2, 1, false}, {3, 2, false}, {8, 2, true}};
	const uint64_t tokens[] = {10, 11, 12, 13, 14, 15, 16, 17, 18};
	struct piece p;

	for (size_t i = 0; i < COUNT(types); i++) {
		put_idx(&p, types[i].code, types[i].width, NULL);
		files_put(*state, "a.idx", p.at, p.n);
		assert_content(put_bin(*state, types[i].width, SIZE_MAX), tokens, TOKENS,
			(const uint32_t[]){3, 5, 9}, types[i].plain);
	}
}

/*
 * Sequences in another order than in the .bin, with bytes outside sequences before, between and
 * after them.
 */
static void test_not_contiguous(void **state)
{
	struct piece p;

	put_idx(&p, 8, 2, (const uint64_t[]){12, 2, 0, 4});
	files_put(*state, "a.idx", p.at, p.n);
	assert_content(put_bin(*state, 2, SIZE_MAX),
		(const uint64_t[]){16, 17, 18, 10, 11, 12, 13, 14, 15}, TOKENS,
		(const uint32_t[]){3, 5, 9}, false);
	put_idx(&p, 1, 1, (const uint64_t[]){1, 9, 6, 2});
	files_put(*state, "a.idx", p.at, p.n);
	put_bin(*state, 1, SIZE_MAX);
	assert_content(((struct files *)*state)->path,
		(const uint64_t[]){11, 12, 13, 16, 17, 12, 13, 14, 15}, TOKENS,
		(const uint32_t[]){3, 5, 9}, false);
}

/* ---- broken ones ---- */

static const struct {
	unsigned at, bytes;
	uint64_t value;
	const char *why;
} broken[] = {
	{0, 1, 'm', "must be MMIDIDX: it is not a Megatron index"},
	{8, 1, 1, "must be MMIDIDX: it is not a Megatron index"},
	{0, 8, 0x584449544e54, "magic is TNTIDX"},
	{9, 8, 0, "version is 0; must be 1"},
	{9, 8, 2, "version is 2; must be 1"},
	{9, 8, UINT64_C(1) << 56, "version is 72057594037927936; must be 1"},
	{17, 1, 0, "dtype is 0; must be 1 to 5 or 8"},
	{17, 1, 6, "dtype is 6 (f64), which is not an integer type"},
	{17, 1, 7, "dtype is 7 (f32), which is not an integer type"},
	{17, 1, 9, "dtype is 9; must be"},
	{17, 1, 255, "dtype is 255; must be"},
	{17, 1, 1,
		"dtype is u8, of 1 bytes; its pointers and the .bin's 18 bytes match tokens of 2 "
		"bytes"},
	{17, 1, 2, "dtype is i8, of 1 bytes; its pointers"},
	{17, 1, 4, "4 sequences have 9 tokens of i32 in total; the .bin has 18 bytes, which is 4"},
	{18, 8, N + 1, "document count is 3; its 12 bytes after the 5 sequences hold at most 1"},
	{18, 8, N - 1,
		"has 12 bytes after its 3 sequences and 3 document boundaries; must have 0, or 3 "
		"(modes)"},
	{18, 8, 0, "sequence count is 0, and there are 48 bytes after the 3 document boundaries"},
	{18, 8, 7, "sequence count is 7; its 72 bytes after the header hold at most 6"},
	{18, 8, UINT64_MAX, "sequence count is 18446744073709551615"},
	{18, 8, UINT64_C(1) << 62, "sequence count is 4611686018427387904"}, /* times 4 is 2^64 */
	{18, 8, UINT64_C(0x1555555555555556), "sequence count is"},	     /* times 12 is 8 */
	{26, 8, 0, "document count is 0; must be at least 1"},
	{26, 8, D - 1, "has 8 bytes after its 4 sequences and 2"},
	{26, 8, D + 1, "document count is 4; its 24 bytes after the 4 sequences hold at most 3"},
	{26, 8, UINT64_MAX, "document count is 18446744073709551615"},
	{26, 8, UINT64_C(1) << 61, "document count is 2305843009213693952"}, /* times 8 is 2^64 */
	{LENGTHS, 4, UINT32_MAX, "length of sequence 0 is -1; must be 0 to 2147483647"},
	{LENGTHS + 12, 4, 0x80000000, "length of sequence 3 is -2147483648"},
	{LENGTHS, 4, 0x7fffffff,
		"2147483653 tokens of u16 in total; the .bin has 18 bytes, which is 9"},
	{LENGTHS, 4, 4, "10 tokens of u16 in total; the .bin has 18 bytes, which is 9"},
	{POINTERS, 8, UINT64_MAX,
		"sequence 0 begins at byte -1 and has 3 tokens of u16; the .bin has 18 bytes"},
	{POINTERS, 8, UINT64_MAX - 5, "sequence 0 begins at byte -6 and has 3"}, /* and ends at 0 */
	{POINTERS, 8, 14,
		"sequence 0 begins at byte 14 and has 3 tokens of u16; the .bin has 18 bytes"},
	{POINTERS, 8, 1, "sequence 0 begins at byte 1; must be a multiple of 2"},
	{POINTERS + 16, 8, 4, "sequence 2 begins at byte 4, within the previous one, bytes 0 to 6"},
	{POINTERS + 8, 8, 20, "sequence 1 begins at byte 20 and has 0 tokens"},
	{POINTERS + 24, 8, 12, "sequence 3 begins at byte 12 and has 4"},
	{POINTERS + 24, 8, INT64_MAX, "sequence 3 begins at byte 9223372036854775807"},
	{DOCUMENTS, 8, 1, "document boundary 0 is sequence 1; must be 0 to 0"},
	{DOCUMENTS, 8, UINT64_MAX, "document boundary 0 is sequence -1"},
	{DOCUMENTS + 8, 8, 5, "document boundary 1 is sequence 5; must be 0 to 4"},
	{DOCUMENTS + 8, 8, UINT64_MAX, "document boundary 1 is sequence -1; must be 0 to 4"},
	{DOCUMENTS + 16, 8, 1, "document boundary 2 is sequence 1; must be 2 to 4"},
	{DOCUMENTS + 16, 8, 3, "the last document boundary is sequence 3; must be 4"},
	{DOCUMENTS + 16, 8, 5, "document boundary 2 is sequence 5; must be 2 to 4"},
};

static void test_broken(void **state)
{
	struct piece p, value;

	for (size_t i = 0; i < COUNT(broken); i++) {
		put_idx(&p, 8, 2, NULL);
		value.n = 0;
		piece_number(&value, broken[i].value, broken[i].bytes);
		memcpy(p.at + broken[i].at, value.at, value.n);
		files_put(*state, "a.idx", p.at, p.n);
		assert_refused(put_bin(*state, 2, SIZE_MAX), NULL, broken[i].why);
	}
}

static void test_sizes(void **state)
{
	struct piece p;

	put_idx(&p, 8, 2, NULL);
	for (size_t n = 0; n < p.n; n++) {
		files_put(*state, "a.idx", p.at, n);
		assert_refused(put_bin(*state, 2, SIZE_MAX), NULL, ".idx: ");
	}
	piece_number(&p, 0, 3);
	files_put(*state, "a.idx", p.at, p.n);
	assert_refused(put_bin(*state, 2, SIZE_MAX), NULL,
		"has 3 bytes after its 4 sequences and 3 document");
	files_put(*state, "a.idx", p.at, p.n - 3);
	for (size_t n = 0; n < 18; n++)
		assert_refused(
			put_bin(*state, 2, n), NULL, "9 tokens of u16 in total; the .bin has");
	assert_int_equal(unlink(files_path(*state, "a.idx")), 0);
	assert_refused(put_bin(*state, 2, SIZE_MAX), "megatron", "has no .idx next to it");
	files_put(*state, "a.idx", p.at, p.n - 3);
	assert_refused(files_path(*state, "a.idx"), NULL, "is a Megatron index");
	assert_refused(files_path(*state, "a.idx"), "megatron", "give the .bin");
}

/* With any byte of the .idx changed, it is rejected, or all its tokens are in the .bin. */
static void test_any_byte(void **state)
{
	static const uint8_t flips[] = {1, 2, 4, 8, 16, 32, 64, 128, 255};
	struct piece p;
	unsigned opened = 0;

	put_idx(&p, 8, 2, NULL);
	for (size_t i = 0; i < p.n * COUNT(flips); i++) {
		struct fault fault;
		uint16_t out[16];
		uint32_t at[16];
		int fd;

		p.at[i / COUNT(flips)] ^= flips[i % COUNT(flips)];
		files_put(*state, "a.idx", p.at, p.n);
		struct shard *shard = try_open(put_bin(*state, 2, SIZE_MAX), NULL, &fd, &fault);

		p.at[i / COUNT(flips)] ^= flips[i % COUNT(flips)];
		if (!shard)
			continue;
		opened++;
		assert_true(shard->facts.tokens <= 2 * TOKENS);
		assert_true(
			shard->facts.tokens * shard_type_bytes(shard->facts.type) <= 2 * TOKENS);
		uint64_t most = shard->facts.tokens < 16 ? shard->facts.tokens : 16;

		assert_true(shard_read(shard, 0, most, out, &fault));
		assert_true(shard_documents(shard, 0, most, at, COUNT(at), &fault) >= 0);
		shard_close(shard);
		close(fd);
	}
	assert_in_range(
		opened, 1, 200); /* other pointers and types may be right, and shorter lengths */
}

/* A directory's list skips an .idx, but rejects one without its .bin. */
static void test_directory(void **state)
{
	struct files *f = *state;
	struct shard_list list;
	struct piece p;
	struct fault fault;

	put_idx(&p, 8, 2, NULL);
	files_put(f, "a.idx", p.at, p.n);
	put_bin(f, 2, SIZE_MAX);
	assert_true(shard_list_read(&list, f->directory, &fault));
	assert_int_equal(list.count, 1);
	assert_string_equal(shard_list_name(&list, 0), "a.bin");
	shard_list_free(&list);
	assert_int_equal(unlink(files_path(f, "a.bin")), 0);
	assert_false(shard_list_read(&list, f->directory, &fault));
	assert_non_null(strstr(fault.text, "a.idx: is a Megatron index, but its shard"));
}

/* If the .idx of an open shard changes, wrong boundaries are reported and never served. */
static void test_changed(void **state)
{
	struct piece p;
	struct fault fault;
	uint32_t at[16];
	int fd;

	put_idx(&p, 8, 2, NULL);
	files_put(*state, "a.idx", p.at, p.n);
	struct shard *shard = try_open(put_bin(*state, 2, SIZE_MAX), NULL, &fd, &fault);

	assert_non_null(shard);
	memset(p.at + POINTERS, 0xff, 8 * N);
	files_put(*state, "a.idx", p.at, p.n);
	assert_int_equal(shard_documents(shard, 0, TOKENS, at, COUNT(at), &fault), -1);
	assert_non_null(strstr(fault.text, "changed after the shard was opened"));
	files_put(*state, "a.idx", p.at, HEADER);
	assert_int_equal(shard_documents(shard, 0, TOKENS, at, COUNT(at), &fault), -1);
	shard_close(shard);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest all[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)
		TEST(test_types),
		TEST(test_not_contiguous),
		TEST(test_broken),
		TEST(test_sizes),
		TEST(test_any_byte),
		TEST(test_directory),
		TEST(test_changed),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
