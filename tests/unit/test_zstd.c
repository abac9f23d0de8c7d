/*
 * The cache of decoded frames: many threads share it, it stays within its budget, and it has
 * nothing of a file that was closed. tests/system/test_shards.py reads files of their own
 * writers.
 */
#include "daemon/shard/bytes.h"
#include "tests/unit/files.h"
#include "tests/unit/rng.h"

#include <pthread.h>
#include <zstd.h>

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

struct file {
	uint8_t at[CONTENT * 2];
	size_t n, frames, entry[1000][2];
};

static void put(struct file *f, size_t at, size_t value)
{
	for (int i = 0; i < 4; i++)
		f->at[at + (size_t)i] = (uint8_t)(value >> 8 * i);
}

/* Adds a frame of @bytes, which decodes to @n. */
static void put_entry(struct file *f, size_t bytes, size_t n)
{
	f->n += bytes;
	f->entry[f->frames][0] = bytes;
	f->entry[f->frames++][1] = n;
}

/* The seek table of zstd's contrib/seekable_format. */
static void put_table(struct file *f)
{
	put(f, f->n, 0x184d2a5e);
	put(f, f->n + 4, 8 * f->frames + 9);
	f->n += 8;
	for (size_t i = 0; i < f->frames; i++, f->n += 8) {
		put(f, f->n, f->entry[i][0]);
		put(f, f->n + 4, f->entry[i][1]);
	}
	put(f, f->n, f->frames);
	f->at[f->n + 4] = 0;
	put(f, f->n + 5, 0x8f92eab1);
	f->n += 9;
}

/* Compresses the first @length bytes to frames of up to @most bytes, some without their size, as
 * stream compressors write. */
static void make(struct file *f, size_t length, size_t most)
{
	static struct rng rng = {9};
	ZSTD_CCtx *c = ZSTD_createCCtx();

	f->n = f->frames = 0;
	for (size_t at = 0, n; at < length; at += n) {
		n = rng_below(&rng, most + 1);
		n = n < length - at ? n : length - at;
		ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, (int)rng_below(&rng, 2));
		size_t bytes =
			ZSTD_compress2(c, f->at + f->n, sizeof(f->at) - f->n, content + at, n);

		assert_false(ZSTD_isError(bytes));
		put_entry(f, bytes, n);
	}
	ZSTD_freeCCtx(c);
	put_table(f);
}

static struct bytes *open_bytes(const char *path, struct frames *frames, int *fd)
{
	struct fault fault;

	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	struct bytes *file = bytes_open(*fd, path, NULL, &fault),
		     *b = file ? zstd_open(file, frames, 0, &fault) : NULL;

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
	int fd[2];

	make(&f, CONTENT, 2000);
	files_put(*state, "a.bin.zst", f.at, f.n);
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
		if (budgets[i] > 600000) { /* all of it, once for each file, and 8 decoders */
			assert_true(frames_bytes(frames) >= 2 * CONTENT);
			assert_true(frames_bytes(frames) <= 2 * CONTENT + THREADS * 400000);
		}
		for (int k = 0; k < 2; k++) {
			bytes_close(b[k]);
			close(fd[k]);
		}
		assert_int_equal(frames_bytes(frames), 0);
		frames_free(frames);
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
		TEST(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
