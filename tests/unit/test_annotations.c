/*
 * Side files of shards: document bounds (.csv.gz) and loss masks. Shows how good ones are read, and
 * the message for each of many broken ones. tests/system/test_formats.py runs the daemon with
 * files of their own writers.
 */
#include "daemon/shard/bounds.h"
#include "daemon/shard/mask.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"
#include "tests/unit/rng.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <zlib.h>

enum { TOKENS = 100, HEAD = 128 /* bytes of an .npy's header */ };

/* ---- bounds ---- */

/* Compresses as gzip does. Returns the number of bytes at @to. */
static size_t pack(const void *text, size_t n, uint8_t *to, size_t room)
{
	z_stream z = {.next_in = (void *)text,
		.avail_in = (unsigned)n,
		.next_out = to,
		.avail_out = (unsigned)room};

	assert_int_equal(
		deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

static void put_packed(struct files *f, const void *text, size_t n)
{
	size_t room = n / 2 + 1000;
	uint8_t *packed = malloc(room);

	assert_non_null(packed);
	files_put(f, "a.csv.gz", packed, pack(text, n, packed, room));
	free(packed);
}

/* NULL: @why. */
static struct bounds *try_bounds(struct files *f, uint64_t tokens, struct fault *fault)
{
	struct bounds *b;

	return bounds_open(&(struct bytes){.path = files_path(f, "a.npy")}, tokens, &b, fault)
		       ? b
		       : NULL;
}

static struct bounds *good_bounds(struct files *f, const char *text)
{
	struct fault fault;

	put_packed(f, text, strlen(text));
	struct bounds *b = try_bounds(f, TOKENS, &fault);

	if (!b)
		fail_msg("%s: %s", text, fault.text);
	return b;
}

/* @expected: boundaries, then TOKENS; @gaps: pairs of first and end. */
static void check_bounds(const struct bounds *b, uint64_t documents, const uint64_t *expected,
	const uint64_t *gaps, unsigned n)
{
	uint64_t outside = 0;

	assert_int_equal(bounds_documents(b), documents);
	for (unsigned g = 0; g < n; g++)
		outside += gaps[2 * g + 1] - gaps[2 * g];
	assert_int_equal(bounds_outside(b), outside);
	for (uint64_t t = 0, i = 0; t < TOKENS; t++) {
		while (expected[i] <= t)
			i++;
		assert_int_equal(bounds_next(b, t), expected[i]);
	}
	for (uint64_t from = 0; from < TOKENS; from++)
		for (uint64_t end = from; end <= TOKENS; end++) {
			uint8_t mask[TOKENS + 1], wanted[TOKENS + 1];

			memset(mask, 1, sizeof(mask));
			memset(wanted, 1, sizeof(wanted));
			for (unsigned g = 0; g < n; g++)
				for (uint64_t t = gaps[2 * g]; t < gaps[2 * g + 1]; t++)
					if (t >= from && t < end)
						wanted[t - from] = 0;
			bounds_mask(b, from, end - from, mask);
			assert_memory_equal(mask, wanted, sizeof(mask));
		}
}

static void bounds_are_what_the_rows_say(void **state)
{
	static const struct {
		const char *text;
		uint64_t documents, boundary[8], gap[6];
		unsigned gaps;
	} cases[] = {
		{"0,100\n", 1, {100}, {0}, 0},
		{"0,100", 1, {100}, {0}, 0},
		{"0,40\r\n40,41\r\n41,100\r\n", 3, {40, 41, 100}, {0}, 0},
		{"10,20\n20,30\n50,99\n", 3, {10, 20, 30, 50, 99, 100}, {0, 10, 30, 50, 99, 100},
			3},
		/* empty documents have no bounds, wherever they are */
		{"0,0\n0,5\n5,5\n5,5\n7,7\n9,100\n100,100\n", 7, {5, 9, 100}, {5, 9}, 1},
		{"", 0, {100}, {0, 100}, 1},
		/* dolma's: an id, where from, and where there; quotes hold commas, quotes and ends
		 * of lines
		 */
		{"0,7,\"a, \"\"b\"\"\r\n1,2\",s3://x,3\r\n7,100,,,\r\n", 2, {7, 100}, {0}, 0},
		{"\"0\",\"7\",x\"y,z\n7,100,\"\"\n", 2, {7, 100}, {0}, 0},
		{"0,007\r7,100\r", 2, {7, 100}, {0}, 0},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bounds *b = good_bounds(*state, cases[i].text);

		check_bounds(b, cases[i].documents, cases[i].boundary, cases[i].gap, cases[i].gaps);
		bounds_close(b);
	}
}

/* Rows may cross gzip members and the chunks in which the file is read. */
static void gzip_may_have_several_members(void **state)
{
	enum { DOCUMENTS = 40000 };
	struct files *f = *state;
	uint8_t *packed = malloc(1 << 21);
	size_t n = 0, documents = 0, members = 0;
	uint64_t *end = malloc(DOCUMENTS * sizeof(*end)), at = 0;
	struct rng rng = {.state = 5};
	struct fault fault;

	assert_true(packed && end);
	while (documents < DOCUMENTS) {
		char text[60000];
		size_t length = 0, rows = rng_below(&rng, 1000) + 1;

		for (; rows > 0 && documents < DOCUMENTS; rows--) {
			uint64_t start = at;

			at += 1 + rng_below(&rng, UINT64_C(1) << rng_below(&rng, 24));
			end[documents++] = at;
			length += (size_t)snprintf(text + length, sizeof(text) - length,
				"%" PRIu64 ",%" PRIu64 ",%" PRIx64 "\n", start, at, rng_next(&rng));
		}
		n += pack(text, length, packed + n, (1 << 21) - n);
		members++;
	}
	assert_true(n > 3 * 65536 && members > 10);
	files_put(f, "a.csv.gz", packed, n);
	struct bounds *b = try_bounds(f, at, &fault);

	if (!b)
		fail_msg("%s", fault.text);
	assert_int_equal(bounds_documents(b), DOCUMENTS);
	for (size_t i = 0; i < DOCUMENTS; i++) {
		assert_int_equal(bounds_next(b, end[i] - 1), end[i]);
		assert_int_equal(bounds_next(b, i ? end[i - 1] : 0), end[i]);
	}
	assert_in_range(bounds_bytes(b), 0, 3 * DOCUMENTS);
	bounds_close(b);
	free(packed);
	free(end);
}

#define ROW(n) "a.csv.gz:" #n ": "

static const struct {
	const char *text, *why;
} bad_bounds[] = {
	{"0,101\n", ROW(1) "end is 101; must be at most 100, the number of tokens in the shard"},
	{"0,18446744073709551615\n", ROW(1) "end is 18446744073709551615; must be at most 100, the "
					    "number of tokens in the shard"},
	{"0,18446744073709551616\n",
		ROW(1) "end is '18446744073709551616'; must be an integer below 2^64"},
	{"9223372036854775809,9223372036854775809\n",
		ROW(1) "end is 9223372036854775809; must be at most 100, the number of tokens in "
		       "the shard"},
	{"0,5\n5,4\n", ROW(2) "end is 4; must be at least 5, its start"},
	{"0,5\n4,9\n", ROW(2) "start is 4; must be at least 5, the end of the previous row: "
			      "documents must ascend and not overlap"},
	{"50,60\n0,50\n", ROW(2) "start is 0; must be at least 60, the end of the previous row: "
				 "documents must ascend and not overlap"},
	{"7,7\n6,9\n", ROW(2) "start is 6; must be at least 7, the end of the previous row: "
			      "documents must ascend and not overlap"},
	{"start,end\n0,5\n", ROW(1) "start is 'start'; must be an integer below 2^64"},
	{"0,5\n\n5,9\n", ROW(2) "start is ''; must be an integer below 2^64"},
	{"0,5\n9\n", ROW(2) "end is ''; must be an integer below 2^64"},
	{"0,\n", ROW(1) "end is ''; must be an integer below 2^64"},
	{"-1,5\n", ROW(1) "start is '-1'; must be an integer below 2^64"},
	{"0,5 \n", ROW(1) "end is '5 '; must be an integer below 2^64"},
	{"0,1e1\n", ROW(1) "end is '1e1'; must be an integer below 2^64"},
	{"0;5\n", ROW(1) "start is '0;5'; must be an integer below 2^64"},
	{"0,\"a\tb\n\033[31m\"\n", ROW(1) "end is 'a?b??[31m'; must be an integer below 2^64"},
	{"1111111111111111111111111111111111,5\n",
		ROW(1) "start is '111111111111111111111111'; must be an integer below 2^64"},
	{"0,5,\"a\n5,9,b\n", ROW(1) "ends inside quotes: the file is truncated"},
};

static void refused(struct files *f, uint64_t tokens, const char *expected)
{
	struct fault fault;

	assert_null(try_bounds(f, tokens, &fault));
	assert_string_equal(fault.text, expected);
}

static void broken_bounds_are_refused(void **state)
{
	static const uint8_t text[] = "0,5\n", zlib[] = {0x78, 0x9c, 3, 0, 0, 0, 0, 1};
	struct files *f = *state;
	uint8_t packed[1000];
	size_t n;

	for (size_t i = 0; i < COUNT(bad_bounds); i++) {
		put_packed(f, bad_bounds[i].text, strlen(bad_bounds[i].text));
		refused(f, TOKENS, bad_bounds[i].why);
	}
	files_put(f, "a.csv.gz", "", 0);
	refused(f, TOKENS, "a.csv.gz: is truncated: it ends within its gzip data");
	files_put(f, "a.csv.gz", text, 4);
	refused(f, TOKENS, "a.csv.gz: is not a gzip file, or is damaged: incorrect header check");
	files_put(f, "a.csv.gz", zlib, sizeof(zlib));
	refused(f, TOKENS, "a.csv.gz: is not a gzip file, or is damaged: incorrect header check");
	n = pack(text, 4, packed, sizeof(packed));
	for (size_t cut = 1; cut < n; cut++) {
		files_put(f, "a.csv.gz", packed, cut);
		refused(f, TOKENS, "a.csv.gz: is truncated: it ends within its gzip data");
	}
	packed[n] = 'x';
	files_put(f, "a.csv.gz", packed, n + 1);
	refused(f, TOKENS, "a.csv.gz: is truncated: it ends within its gzip data");
	packed[n - 8] ^= 1;
	files_put(f, "a.csv.gz", packed, n);
	refused(f, TOKENS, "a.csv.gz: is not a gzip file, or is damaged: incorrect data check");
	assert_int_equal(remove(files_path(f, "a.csv.gz")), 0);
	assert_int_equal(mkdir(files_path(f, "a.csv.gz"), 0755), 0);
	refused(f, TOKENS, "a.csv.gz: is not a regular file; a shard must be one");
}

/* Millions of empty documents, which compress to almost nothing, take no memory. */
static void memory_is_in_proportion_to_the_shard(void **state)
{
	enum { BYTES = 32 << 20 };
	struct files *f = *state;
	char *text = malloc(BYTES);
	struct fault fault = {.text = ""};
	size_t n = 0;

	assert_non_null(text);
	n += (size_t)snprintf(text, 20, "0,1\n");
	while (n + 4 <= BYTES) {
		memcpy(text + n, "1,1\n", 4);
		n += 4;
	}
	put_packed(f, text, n);
	free(text);
	size_t before = mallinfo2().uordblks;
	struct bounds *b = try_bounds(f, 2, &fault);

	assert_non_null(b);
	assert_true(mallinfo2().uordblks - before < 4096);
	assert_int_equal(bounds_documents(b), BYTES / 4);
	assert_int_equal(bounds_next(b, 0), 1);
	assert_int_equal(bounds_next(b, 1), 2);
	bounds_close(b);
}

/* ---- through a shard ---- */

static struct shard *open_shard(struct files *f, const char *name, const struct shard_hint *hint,
	int *fd, struct fault *fault)
{
	char path[128];
	struct shard_facts facts;

	snprintf(path, sizeof(path), "%s", files_path(f, name));
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	const struct shard_format *format = shard_describe(NULL, path, *fd, hint, &facts, fault);
	struct shard *shard = format ? shard_open(format, path, *fd, hint, &facts, fault) : NULL;

	if (!shard)
		close(*fd);
	return shard;
}

static const uint16_t tokens[TOKENS];

/* Bounds are opened only if they are requested. */
static void bounds_belong_to_flat_shards(void **state)
{
	static const char *const names[] = {"a.npy", "a.bin", "a.ds"};
	struct shard_hint asks = {.type = SHARD_U16, .documents = true, .loss_mask = true},
			  asks_not = {.type = SHARD_U16};
	struct files *f = *state;
	struct fault fault;
	uint32_t at[8];
	int fd;

	put_packed(f, "3,40\n40,80\n", 11);
	for (size_t i = 0; i < COUNT(names); i++) {
		uint8_t mask[TOKENS];

		files_put(f, names[i], tokens, sizeof(tokens));
		struct shard *s = open_shard(f, names[i], &asks, &fd, &fault);

		assert_non_null(s);
		assert_int_equal(s->facts.bounds > 0, i < 2);
		assert_int_equal(s->facts.documents, i < 2 ? 2 : SHARD_UNKNOWN);
		assert_int_equal(shard_documents(s, 0, TOKENS, at, 8, &fault), i < 2 ? 3 : 0);
		assert_true(i == 2 || (at[0] == 3 && at[1] == 40 && at[2] == 80));
		assert_int_equal(shard_documents(s, 40, 40, at, 8, &fault), 0);
		assert_true(shard_loss_mask(s, 1, 82, mask, &fault));
		assert_true(mask[0] == (i == 2) && mask[1] == (i == 2) && mask[2] == 1 &&
			    mask[78] == 1);
		assert_true(mask[79] == (i == 2) && mask[81] == (i == 2));
		shard_close(s);
		close(fd);
		s = open_shard(f, names[i], &asks_not, &fd, &fault);
		assert_non_null(s);
		assert_true(!s->facts.bounds && s->facts.documents == SHARD_UNKNOWN);
		shard_close(s);
		close(fd);
	}
}

/* The memory of bounds counts in index_bytes. */
static void bounds_count_as_memory(void **state)
{
	enum { ROWS = 5000, GOES_WITH_IT = 2048 };
	struct shard_hint asks = {.type = SHARD_U16, .documents = true},
			  asks_not = {.type = SHARD_U16};
	static uint16_t long_tokens[2 * ROWS];
	static char text[ROWS * 16];
	struct files *f = *state;
	struct fault fault = {.text = ""};
	char *at = text;
	int fd;

	for (int i = 0; i < ROWS; i++)
		at += sprintf(at, "%d,%d\n", 2 * i, 2 * i + 2);
	put_packed(f, text, (size_t)(at - text));
	files_put(f, "a.npy", long_tokens, sizeof(long_tokens));
	struct shard *s = open_shard(f, "a.npy", &asks, &fd, &fault);

	assert_non_null(s);
	assert_in_range(s->facts.index_bytes, ROWS, ROWS * 5 / 4 + GOES_WITH_IT);
	shard_close(s);
	close(fd);
	s = open_shard(f, "a.npy", &asks_not, &fd, &fault);
	assert_non_null(s);
	assert_true(s->facts.index_bytes < GOES_WITH_IT);
	shard_close(s);
	close(fd);
}

/* So does that of an index. */
static void an_index_counts_as_memory(void **state)
{
	enum { ROWS = 5000, TOKENS_EACH = 100, GOES_WITH_IT = 2048 };
	static uint16_t long_tokens[ROWS * TOKENS_EACH];
	static uint64_t ends[ROWS];
	struct shard_hint hint = {.type = SHARD_U16};
	struct files *f = *state;
	struct fault fault;
	uint32_t at[2];
	int fd;

	for (uint64_t i = 0; i < ROWS; i++)
		ends[i] = htole64((i + 1) * TOKENS_EACH);
	files_put(f, "a.ds.index", ends, sizeof(ends));
	files_put(f, "a.ds", long_tokens, sizeof(long_tokens));
	struct shard *s = open_shard(f, "a.ds", &hint, &fd, &fault);

	assert_non_null(s);
	assert_int_equal(s->facts.documents, ROWS);
	assert_in_range(s->facts.index_bytes, 2 * ROWS, 9 * ROWS / 4 + GOES_WITH_IT);
	for (uint64_t i = 0; i + 1 < ROWS; i++) {
		assert_int_equal(
			shard_documents(s, i * TOKENS_EACH + 3, TOKENS_EACH, at, 2, &fault), 1);
		assert_int_equal(at[0], TOKENS_EACH - 3);
	}
	shard_close(s);
	close(fd);
}

/* ---- masks ---- */

static void npy_head(uint8_t *to, const char *descr, const char *shape)
{
	int n = snprintf((char *)to, HEAD,
		"\x93NUMPY\1%c\x76%c{'descr': '%s', 'fortran_order': False, 'shape': %s, }", 0, 0,
		descr, shape);

	memset(to + n, ' ', (size_t)(HEAD - n));
	to[HEAD - 1] = '\n';
}

static void check_mask(
	struct files *f, const char *name, const struct shard_hint *hint, const uint8_t *wanted)
{
	struct fault fault;
	uint8_t mask[TOKENS];
	int fd;
	struct shard *s = open_shard(f, name, hint, &fd, &fault);

	if (!s)
		fail_msg("%s", fault.text);
	assert_true(s->facts.mask);
	for (uint64_t at = 0; at < TOKENS; at += 7)
		for (uint64_t n = 0; n <= TOKENS - at; n++) {
			assert_true(shard_loss_mask(s, at, n, mask, &fault));
			assert_memory_equal(mask, wanted + at, n);
		}
	shard_close(s);
	close(fd);
}

static void masks_are_read(void **state)
{
	struct files *f = *state;
	char masks[128];
	uint8_t whole[HEAD + TOKENS], *mask = whole + HEAD;
	struct shard_hint hint = {.type = SHARD_U16, .loss_mask = true};

	for (unsigned i = 0; i < TOKENS; i++)
		mask[i] = i % 3 != 1;
	files_put(f, "a.ds", tokens, sizeof(tokens));
	files_put(f, "a.ds.loss", mask, TOKENS);
	check_mask(f, "a.ds", &hint, mask);

	snprintf(masks, sizeof(masks), "%s/masks", f->directory);
	assert_int_equal(mkdir(masks, 0755), 0);
	hint.label_mask = masks;
	hint.root_bytes = strlen(f->directory) + 1;
	files_put(f, "b.npy", tokens, sizeof(tokens));
	files_put(f, "masks/b.npy", mask, TOKENS);
	check_mask(f, "b.npy", &hint, mask);
	npy_head(whole, "|b1", "(100,)");
	files_put(f, "masks/b.npy", whole, sizeof(whole));
	check_mask(f, "b.npy", &hint, mask);

	/* A mask and bounds combine. */
	put_packed(f, "0,10\n20,100\n", 12);
	files_put(f, "a.npy", tokens, sizeof(tokens));
	files_put(f, "masks/a.npy", mask, TOKENS);
	memset(mask + 10, 0, 10);
	check_mask(f, "a.npy", &hint, mask);
}

static void mask_refused(struct files *f, const struct shard_hint *hint, const char *expected)
{
	struct fault fault = {.text = ""};
	char whole[512];
	int fd;

	snprintf(whole, sizeof(whole), expected, f->directory);
	assert_null(open_shard(f, "a.bin", hint, &fd, &fault));
	assert_string_equal(fault.text, whole);
}

static void broken_masks_are_refused(void **state)
{
	struct files *f = *state;
	char masks[128] = "";
	struct fault fault;
	uint8_t whole[HEAD + TOKENS] = {0}, mask[TOKENS];
	int fd;

	snprintf(masks, sizeof(masks), "%s/masks", f->directory);
	assert_int_equal(mkdir(masks, 0755), 0);
	const struct shard_hint hint = {.type = SHARD_U16,
		.loss_mask = true,
		.label_mask = masks,
		.root_bytes = strlen(f->directory) + 1};

	files_put(f, "a.bin", tokens, sizeof(tokens));
	mask_refused(f, &hint,
		"has no loss mask: %s/masks/a.bin does not exist; label_mask must have one for "
		"each shard of the dataset");
	files_put(f, "masks/a.bin", whole, TOKENS - 1);
	mask_refused(f, &hint,
		"its loss mask a.bin: its size is 99 bytes; must be 100, one for each token of the "
		"shard");
	files_put(f, "masks/a.bin", whole, TOKENS + 1);
	mask_refused(f, &hint,
		"its loss mask a.bin: its size is 101 bytes; must be 100, one for each token of "
		"the shard");
	npy_head(whole, "<u2", "(100,)");
	files_put(f, "masks/a.bin", whole, sizeof(whole));
	mask_refused(
		f, &hint, "its loss mask a.bin: NumPy header: descr is '<u2'; must be |b1 (bool)");
	npy_head(whole, "|b1", "(101,)");
	files_put(f, "masks/a.bin", whole, sizeof(whole));
	mask_refused(f, &hint,
		"its loss mask a.bin: NumPy header: shape is (101, …) of 1 dimensions, and the "
		"file has 100 bytes after the header; must be (100,), one for each token of the "
		"shard");
	npy_head(whole, "|b1", "(10, 10)");
	files_put(f, "masks/a.bin", whole, sizeof(whole));
	mask_refused(f, &hint,
		"its loss mask a.bin: NumPy header: shape is (10, …) of 2 dimensions, and the file "
		"has 100 bytes after the header; must be (100,), one for each token of the shard");
	npy_head(whole, "|b1", "(100,)");
	files_put(f, "masks/a.bin", whole, sizeof(whole) - 1);
	mask_refused(f, &hint,
		"its loss mask a.bin: NumPy header: shape is (100, …) of 1 dimensions, and the "
		"file has 99 bytes after the header; must be (100,), one for each token of the "
		"shard");

	/* A wrong value is reported only when it is served. */
	memset(whole, 1, sizeof(whole));
	whole[70] = 7;
	files_put(f, "masks/a.bin", whole, TOKENS);
	struct shard *s = open_shard(f, "a.bin", &hint, &fd, &fault);

	assert_non_null(s);
	assert_true(shard_loss_mask(s, 0, 70, mask, &fault));
	assert_true(shard_loss_mask(s, 71, 29, mask, &fault));
	assert_false(shard_loss_mask(s, 60, 20, mask, &fault));
	assert_int_equal(fault.code, FAULT_DATA);
	assert_string_equal(
		fault.text, "its loss mask a.bin: the value of token 70 is 7; must be 0 or 1");
	assert_int_equal(truncate(files_path(f, "masks/a.bin"), 50), 0);
	assert_false(shard_loss_mask(s, 0, 60, mask, &fault));
	assert_int_equal(fault.error, EIO);
	assert_string_equal(fault.text, "its loss mask a.bin: was truncated: it ends at byte 50, "
					"but had 100 bytes when it was opened");
	shard_close(s);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			bounds_are_what_the_rows_say, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			gzip_may_have_several_members, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			broken_bounds_are_refused, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			memory_is_in_proportion_to_the_shard, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			bounds_belong_to_flat_shards, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			bounds_count_as_memory, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			an_index_counts_as_memory, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(masks_are_read, files_set_up, files_tear_down),
		cmocka_unit_test_setup_teardown(
			broken_masks_are_refused, files_set_up, files_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
