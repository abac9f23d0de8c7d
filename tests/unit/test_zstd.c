/*
 * Compressed files: every range decodes correctly with any frames; many threads share a cache that
 * stays within its budget; and wrong claims of seek tables and frames are rejected.
 */
#include "daemon/shard/bytes_open.h"
#include "daemon/shard/frames.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"
#include "tests/unit/rng.h"
#include "tests/unit/seekable.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>

enum { CONTENT = 60000 };

static uint8_t content[CONTENT];

/* Content that compresses well, but not to nothing, and does not repeat. */
static void fill_content(void)
{
	for (size_t i = 0; i < CONTENT / 2; i++) {
		content[2 * i] = (uint8_t)(i * i >> 6);
		content[2 * i + 1] = (uint8_t)(i >> 9);
	}
}

/* Compresses the content to frames of up to @most bytes, some empty, some without their size. */
static void make(struct file *f, struct rng *rng, size_t most)
{
	*f = (struct file){.frames = 0};
	for (size_t at = 0; at < CONTENT;) {
		size_t n = rng_below(rng, most + 1);

		if (n > CONTENT - at || f->frames > 500)
			n = CONTENT - at;
		add_frame(f, content + at, n, rng_below(rng, 2));
		at += n;
	}
}

static struct bytes *open_bytes(const char *path, struct frames *frames, int *fd)
{
	struct fault fault;

	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	struct bytes *b = bytes_open(*fd, path, NULL, frames, 0, &fault);

	if (!b)
		fail_msg("%s", fault.text);
	return b;
}

static void assert_range(const struct bytes *b, uint64_t at, size_t n)
{
	static _Thread_local uint8_t got[CONTENT + 1];
	struct fault fault;

	got[n] = 0xaa;
	if (!bytes_read(b, at, got, n, &fault))
		fail_msg("%s", fault.text);
	assert_memory_equal(got, content + at, n);
	assert_int_equal(got[n], 0xaa);
}

static void test_ranges(void **state)
{
	static struct file f;
	struct rng rng = {7};
	struct fault fault;
	char two[2];
	int fd;

	for (int i = 0; i < 40; i++) {
		make(&f, &rng, i % 2 ? 300 + rng_below(&rng, 1000) : 10000);
		if (i % 4 < 3)
			add_table(&f, i % 4 < 2);
		struct bytes *b =
			open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), NULL, &fd);

		assert_int_equal(b->size, CONTENT);
		assert_false(b->plain);
		assert_range(b, 0, CONTENT);
		for (int k = 0; k < 200; k++) {
			uint64_t at = rng_below(&rng, CONTENT);

			assert_range(b, at, rng_below(&rng, CONTENT - at + 1));
		}
		assert_false(bytes_read(b, CONTENT, two, 1, &fault));
		assert_int_equal(fault.code, FAULT_DATA);
		assert_false(bytes_read(b, UINT64_MAX, two, 2, &fault));
		bytes_close(b);
		close(fd);
	}
}

/* Skippable frames, as pzstd and others write, between frames without a table. */
static void test_skippable(void **state)
{
	static struct file f;
	int fd;

	f = (struct file){.frames = 0};
	for (size_t at = 0; at < CONTENT; at += CONTENT / 4) {
		piece_number(&f.data, 0x184d2a50 + at % 16, 4);
		piece_number(&f.data, 3, 4);
		piece_text(&f.data, "abc");
		add_frame(&f, content + at, CONTENT / 4, at % 8 == 0);
	}
	struct bytes *b =
		open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), NULL, &fd);

	assert_int_equal(b->frames, 4);
	assert_int_equal(b->frame_bytes, CONTENT / 4);
	assert_range(b, 0, CONTENT);
	bytes_close(b);
	close(fd);
}

/* ---- many threads ---- */

enum { THREADS = 8 };

struct reader {
	const struct bytes *b;
	struct frames *frames;
	uint64_t seed, budget, most;
};

static void *read_ranges(void *of)
{
	struct reader *r = of;
	struct rng rng = {r->seed};

	for (int i = 0; i < 2000; i++) {
		uint64_t at = rng_below(&rng, CONTENT), n = rng_below(&rng, 3000), used;

		assert_range(r->b, at, n < CONTENT - at ? n : CONTENT - at);
		used = frames_bytes(r->frames);
		r->most = used > r->most ? used : r->most;
	}
	return NULL;
}

/* 8 threads and two open files share a cache, which stays within a budget above one frame. */
static void test_threads(void **state)
{
	static const uint64_t budgets[] = {0, 1000, 400000, 600000, 8 << 20};
	static struct file f;
	struct rng rng = {9};
	int fd[2];

	make(&f, &rng, 2000);
	add_table(&f, true);
	files_put(*state, "a.bin.zst", f.data.at, f.data.n);
	for (size_t i = 0; i < COUNT(budgets); i++) {
		struct frames *frames = frames_new(budgets[i]);
		struct bytes *b[2];
		struct reader reader[THREADS];
		pthread_t thread[THREADS];

		assert_non_null(frames);
		for (int k = 0; k < 2; k++)
			b[k] = open_bytes(files_path(*state, "a.bin.zst"), frames, &fd[k]);
		for (int k = 0; k < THREADS; k++) {
			reader[k] =
				(struct reader){b[k % 2], frames, (uint64_t)k + 1, budgets[i], 0};
			assert_int_equal(
				pthread_create(&thread[k], NULL, read_ranges, &reader[k]), 0);
		}
		for (int k = 0; k < THREADS; k++) {
			pthread_join(thread[k], NULL);
			if (budgets[i])
				assert_true(reader[k].most <=
					    (budgets[i] < 400000 ? 400000 : budgets[i]));
		}
		assert_true(frames_bytes(frames) <= budgets[i]);
		if (budgets[i] >
			600000) { /* all of it, once though two files are open, and 8 decoders */
			assert_true(frames_bytes(frames) >= CONTENT);
			assert_true(frames_bytes(frames) <= CONTENT + THREADS * 400000);
		}
		for (int k = 0; k < 2; k++) {
			bytes_close(b[k]);
			close(fd[k]);
		}
		frames_free(frames);
	}
}

/* frames_try() succeeds for decoded frames only, and decodes none. */
static void test_try(void **state)
{
	static struct file f;
	static uint8_t got[CONTENT];
	struct frames *frames = frames_new(8 << 20);
	int fd;

	f = (struct file){.frames = 0};
	for (size_t at = 0; at < CONTENT; at += CONTENT / 4)
		add_frame(&f, content + at, CONTENT / 4, true);
	add_table(&f, true);
	struct bytes *b =
		open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), frames, &fd);

	assert_false(bytes_try(b, 0, got, 1));
	assert_int_equal(frames_bytes(frames), 0);
	assert_range(b, CONTENT / 4 + 10, CONTENT / 4);
	assert_false(bytes_try(b, CONTENT / 4 - 1, got, 2));
	assert_false(bytes_try(b, 0, got, CONTENT));
	assert_false(bytes_try(b, CONTENT, got, 1));
	assert_false(bytes_try(b, UINT64_MAX, got, 2));
	assert_true(bytes_try(b, CONTENT / 4, got, CONTENT / 2));
	assert_memory_equal(got, content + CONTENT / 4, CONTENT / 2);
	bytes_close(b);
	close(fd);
	frames_free(frames);
}

/* The first bytes of a frame that was decoded are kept when it is evicted, until bytes_forget(). */
static void test_heads(void **state)
{
	static struct file f;
	struct frames *frames = frames_new(0);
	struct fault fault;
	uint8_t got[8];
	int fd;

	f = (struct file){.frames = 0};
	for (size_t at = 0; at < CONTENT; at += CONTENT / 2)
		add_frame(&f, content + at, CONTENT / 2, true);
	add_frame(&f, content, 3, true);
	add_table(&f, true);
	struct bytes *b =
		open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), frames, &fd);

	assert_false(bytes_try(b, CONTENT / 2, got, 2));
	assert_range(b, 0, CONTENT);
	assert_int_equal(frames_bytes(frames), 0);
	assert_false(bytes_try(b, CONTENT / 2 - 1, got, 2));
	assert_false(bytes_try(b, CONTENT / 2, got, 8));
	assert_true(bytes_try(b, CONTENT / 2 + 1, got, 6));
	assert_memory_equal(got, content + CONTENT / 2 + 1, 6);
	assert_false(bytes_try(b, CONTENT, got, 1));
	assert_true(bytes_read(b, CONTENT, got, 3, &fault));
	assert_true(bytes_try(b, CONTENT, got, 3));
	assert_memory_equal(got, content, 3);
	bytes_forget(b);
	assert_false(bytes_try(b, CONTENT / 2, got, 2));
	bytes_close(b);
	close(fd);
	frames_free(frames);
}

/* After a file is replaced, nothing of the old one is served. */
static void test_replaced(void **state)
{
	static struct file f;
	struct frames *frames = frames_new(1 << 20);
	int fd;

	f = (struct file){.frames = 0};
	add_frame(&f, content, 5000, true);
	add_table(&f, true);
	struct bytes *b =
		open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), frames, &fd);

	assert_range(b, 0, 5000);
	bytes_close(b);
	close(fd);
	memmove(content, content + 1000, 6000);
	f = (struct file){.frames = 0};
	add_frame(&f, content, 5000, true);
	add_table(&f, true);
	assert_int_equal(unlink(files_path(*state, "a.bin.zst")), 0);
	files_put(*state, "other", "", 0); /* takes the inode, perhaps */
	b = open_bytes(files_put(*state, "a.bin.zst", f.data.at, f.data.n), frames, &fd);
	assert_range(b, 0, 5000);
	bytes_close(b);
	close(fd);
	frames_free(frames);
	fill_content();
}

/* ---- broken ones ---- */

/* Opening the file, or otherwise reading all of it, fails with a message that contains @why. */
static void assert_refused(const char *path, uint64_t budget, const char *expected)
{
	static uint8_t got[CONTENT];
	struct fault fault = {.text = "accepted"};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct bytes *b = bytes_open(fd, path, NULL, NULL, budget, &fault);

	if (b) {
		size_t n = b->size < CONTENT ? (size_t)b->size : CONTENT;

		if (bytes_read(b, 0, got, n, &fault))
			fail_msg("accepted; should say: %s", expected);
		assert_int_equal(fault.code, FAULT_DATA);
		bytes_close(b);
	}
	if (!strstr(fault.text, expected))
		fail_msg("says:       %s\nshould say: %s", fault.text, expected);
	assert_null(strchr(fault.text, '\n'));
	close(fd);
}

/* A file of three frames of 5000, 0 and 7000 bytes with a table; @at from its end (or begin) set to
 * @value.
 */
static const struct {
	int at; /* < 0: from the end */
	size_t bytes;
	uint64_t value;
	const char *why;
} lies[] = {
	{-5, 1, 0x84, "seek table: descriptor is 0x84; its bits 2 to 6 must be 0"},
	{-5, 1, 0xc0, "descriptor is 0xc0"},
	{-5, 1, 0x00, "number of frames is 3, but at byte"},
	{-9, 4, 2, "number of frames is 2, but at byte"},
	{-9, 4, 4, "number of frames is 4, but at byte"},
	{-9, 4, 0, "number of frames is 0, but at byte"},
	{-9, 4, 0xffffffff,
		"number of frames is 4294967295, a table of 51539607557 bytes; the file has"},
	{-49, 4, 100, "number of frames is 3, but at byte"},
	{-53, 4, 0x184d2a5d, "number of frames is 3, but at byte"},
	{-45, 4, 0xffffffff,
		"frame 0 has a compressed size of 4294967295; from byte 0 on there are"},
	{-45, 4, 1, "frame 0: decompressed size is 5000; its 1 compressed bytes hold at most 0"},
	{-41, 4, 0xffffffff, "frame 0: decompressed size is 4294967295; its"},
	{-41, 4, 0, "frame 0 has a decompressed size of 0; its"},
	{-41, 4, 5002, "frame 0 has a decompressed size of 5002; the frame itself says 5000"},
	{-41, 4, 4998, "frame 0 has a decompressed size of 4998; the frame itself says 5000"},
	{-37, 4, 1, "frame 0 is damaged: its checksum is"},
	{-29, 4, 5,
		"frame 1: the seek table says that it decodes to 5 bytes; its blocks hold at most "
		"0"},
	{-17, 4, 7002, "frame 2 decodes to 7000 bytes; the seek table says 7002"},
	{-17, 4, 6998, "frame 2 is damaged: Destination buffer is too small"},
	{-17, 4, 100000000,
		"frame 2: the seek table says that it decodes to 100000000 bytes; its blocks hold "
		"at most"},
	{-13, 4, 0, "frame 2 is damaged: its checksum is"},
	{0, 4, 0, "frame 0 is at byte 0, where no zstd frame begins"},
	{4, 1, 0x08, "frame 0 is at byte 0, where no zstd frame begins"},
	{40, 4, 0x12345678, "frame 0"},
};

static void make_three(struct file *f)
{
	*f = (struct file){.frames = 0};
	add_frame(f, content, 5000, true);
	add_frame(f, content, 0, false);
	add_frame(f, content + 5000, 7000, false);
	add_table(f, true);
}

static void test_lies(void **state)
{
	static struct file f;

	for (size_t i = 0; i < COUNT(lies); i++) {
		make_three(&f);
		size_t at = lies[i].at < 0 ? f.data.n - (size_t)-lies[i].at : (size_t)lies[i].at;

		for (size_t k = 0; k < lies[i].bytes; k++)
			f.data.at[at + k] = (uint8_t)(lies[i].value >> 8 * k);
		assert_refused(files_put(*state, "a.bin.zst", f.data.at, f.data.n), 0, lies[i].why);
	}
}

/* Two wrong entries whose sums are right. */
static void test_shifted(void **state)
{
	static struct file f;

	make_three(&f);
	f.data.n -= 17 + 36;
	f.frame[0].length += 4;
	f.frame[2].length -= 4;
	add_table(&f, true);
	assert_refused(
		files_put(*state, "a.bin.zst", f.data.at, f.data.n), 0, "frame 2 is at byte");
	f.data.n -= 17 + 36;
	f.frame[0].length -= 4;
	f.frame[1].length += 1;
	f.frame[2].length += 4;
	add_table(&f, true);
	assert_refused(files_put(*state, "a.bin.zst", f.data.at, f.data.n), 0,
		"seek table: frame 2 has a compressed size");
	/* Bytes between the frames and the table. */
	make_three(&f);
	f.data.n -= 17 + 36;
	piece_number(&f.data, 0, 1);
	add_table(&f, true);
	assert_refused(files_put(*state, "a.bin.zst", f.data.at, f.data.n), 0,
		"seek table: its frames make up");
}

/* Without a table, a file that is truncated at any byte is rejected, except between frames. */
static void test_cut(void **state)
{
	static struct file f;
	struct fault fault;

	for (int table = 0; table < 2; table++) {
		f = (struct file){.frames = 0};
		add_frame(&f, content, 3000, true);
		add_frame(&f, content + 3000, 3000, false);
		if (table)
			add_table(&f, true);
		for (size_t n = 0; n < f.data.n; n++) {
			int fd;
			struct bytes *b;

			if (n == f.frame[0].length ||
				n == (size_t)f.frame[0].length + f.frame[1].length)
				continue;
			files_put(*state, "a.bin.zst", f.data.at, n);
			fd = open(files_path(*state, "a.bin.zst"), O_RDONLY | O_CLOEXEC);
			b = bytes_open(fd, ((struct files *)*state)->path, NULL, NULL, 0, &fault);
			if (b)
				fail_msg("cut at %zu of %zu it is accepted", n, f.data.n);
			close(fd);
		}
	}
}

/* With checksums, a flipped bit anywhere is noticed. */
static void test_flipped(void **state)
{
	static struct file f;
	static uint8_t got[CONTENT];
	struct fault fault;

	make_three(&f);
	for (size_t at = 0; at < f.data.n; at += 1 + at / 100)
		for (int bit = 0; bit < 8; bit++) {
			f.data.at[at] ^= (uint8_t)(1 << bit);
			const char *path = files_put(*state, "a.bin.zst", f.data.at, f.data.n);
			int fd = open(path, O_RDONLY | O_CLOEXEC);
			struct bytes *b = bytes_open(fd, path, NULL, NULL, 0, &fault);

			if (b && bytes_read(b, 0, got, (size_t)b->size, &fault)) {
				assert_int_equal(b->size, 12000);
				assert_memory_equal(got, content, 12000);
			}
			bytes_close(b);
			close(fd);
			f.data.at[at] ^= (uint8_t)(1 << bit);
		}
}

static void test_budget(void **state)
{
	static struct file f;

	make_three(&f);
	files_put(*state, "a.bin.zst", f.data.at, f.data.n);
	assert_refused(files_path(*state, "a.bin.zst"), 6999,
		"zstd frame 2 decodes to 7000 bytes; the decode budget is 6999, a quarter of "
		"`memory`: compress the file in frames of 256 KiB");
	for (int sized = 0; sized < 2; sized++) {
		f = (struct file){.frames = 0};
		add_frame(&f, content, 7000, sized);
		files_put(*state, "a.bin.zst", f.data.at, f.data.n);
		assert_refused(files_path(*state, "a.bin.zst"), 6999,
			sized ? "zstd frame 0 decodes to 7000 bytes; the decode budget is 6999"
			      : "zstd frame 0 decodes to more than 6999 bytes; the decode budget "
				"is 6999");
	}
	assert_refused(files_put(*state, "a.bin.zst", "", 0), 0, "its size is 0 bytes");
	assert_refused(files_put(*state, "a.bin.zst", "abcdef", 6), 0,
		"zstd frame 0: no zstd frame begins at byte 0 of 6");
	/* A frame that claims a GiB and is empty. */
	f = (struct file){.frames = 0};
	piece_number(&f.data, 0xfd2fb528, 4);
	piece_number(&f.data, 0xa0, 1);
	piece_number(&f.data, 200 << 20, 4);
	piece_number(&f.data, 1 | 0 << 1 | 8 << 3, 3);
	piece_text(&f.data, "abcdefgh");
	assert_refused(files_put(*state, "a.bin", f.data.at, f.data.n), 0,
		"zstd frame 0: content size is 209715200; its blocks hold at most 8");
}

/* Describing a flat shard with a large frame caches nothing of it. */
static void test_head(void **state)
{
	enum { LARGE = 4 << 20 };
	static uint8_t raw[LARGE], packed[LARGE + LARGE / 8], head[300 * 1024];
	struct frames *frames = frames_new(1 << 26);
	const struct shard_hint hint = {.type = SHARD_U16, .frames = frames};
	struct shard_facts facts;
	struct rng rng = {7};
	struct fault fault;
	int fd;

	for (size_t i = 0; i < LARGE; i++)
		raw[i] = (uint8_t)(64 + rng_below(&rng, 100));
	size_t n = ZSTD_compress(packed, sizeof(packed), raw, LARGE, 1);

	assert_false(ZSTD_isError(n));
	memset(packed + n - 4096, 0xff, 4096); /* the end is not decoded */
	const char *path = files_put(*state, "a.bin.zst", packed, n);
	struct bytes *b = open_bytes(path, frames, &fd);

	for (size_t some = 1; some <= sizeof(head); some = 3 * some + 1) {
		memset(head, 0, sizeof(head));
		assert_int_equal(bytes_head(b, head, some), some);
		assert_memory_equal(head, raw, some);
	}
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	if (!format)
		fail_msg("%s", fault.text);
	assert_string_equal(format->name, "flat");
	assert_int_equal(facts.tokens, LARGE / 2);
	assert_int_equal(frames_bytes(frames), 0);
	assert_false(bytes_read(b, 0, head, 1, &fault));
	assert_int_equal(fault.code, FAULT_DATA);
	bytes_close(b);
	close(fd);
	frames_free(frames);
}

/* Describing decodes all of a small file, and only the beginning of a larger one. */
static void test_described(void **state)
{
	enum { FRAME = 24 * 1024, FRAMES = 8 };
	static uint8_t raw[FRAME], packed[FRAMES * (FRAME + 1024)];
	struct rng rng = {11};

	for (size_t i = 0; i < FRAME; i++)
		raw[i] = (uint8_t)(64 + rng_below(&rng, 100));
	for (unsigned count = 2; count <= FRAMES; count += FRAMES - 2) {
		struct frames *frames = frames_new(1 << 26);
		const struct shard_hint hint = {.type = SHARD_U16, .frames = frames};
		struct shard_facts facts;
		struct fault fault;
		size_t n = 0;

		for (unsigned i = 0; i < count; i++)
			n += ZSTD_compress(packed + n, sizeof(packed) - n, raw, FRAME, 1);
		memset(packed + n - 4096, 0xff, 4096);
		const char *path = files_put(*state, "a.bin.zst", packed, n);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		bool fine = shard_describe(NULL, path, fd, &hint, &facts, &fault);

		assert_int_equal(fine, count > 2);
		assert_non_null(strstr(fault.text, fine ? "" : "zstd frame 1 is damaged"));
		assert_in_range(frames_bytes(frames), 1, FRAMES * FRAME); /* with a decoder */
		frames_free(frames);
		close(fd);
	}
}

static int set_up(void **state)
{
	fill_content();
	return files_set_up(state);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, files_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_ranges),
		TEST(test_skippable),
		TEST(test_threads),
		TEST(test_try),
		TEST(test_heads),
		TEST(test_replaced),
		TEST(test_lies),
		TEST(test_shifted),
		TEST(test_cut),
		TEST(test_flipped),
		TEST(test_budget),
		TEST(test_head),
		TEST(test_described),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
