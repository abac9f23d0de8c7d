/* A handle with a record, and access to the entries in its file. */
#ifndef TESTS_RECORDINGS_H
#define TESTS_RECORDINGS_H

#include "client/lib/recording.h"
#include "proto/record.h"
#include "tests/unit/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MICRO = 4, WINDOW = 33, ROW_BYTES = 2 * WINDOW, ENTRIES_MOST = 1 << 20 };

static char path[200];
static uint64_t entry[ENTRIES_MOST][2]; /* the entries that load() read */
static uint64_t alive = 1;

static inline int setup(void **state)
{
	const char *directory = getenv("TMPDIR");

	(void)state;
	snprintf(path, sizeof(path), "%s/record-XXXXXX", directory ? directory : "/tmp");
	close(mkstemp(path));
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static inline void put_file(const void *bytes, size_t n)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static inline size_t file_bytes(void)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (size_t)st.st_size;
}

/* Reads the complete entries of the file. Returns their number. */
static inline size_t load(void)
{
	FILE *file = fopen(path, "rb");

	assert_non_null(file);

	size_t n = fread(entry, sizeof(entry[0]), ENTRIES_MOST, file);

	fclose(file);
	return n;
}

static inline struct record_begin begin_at(size_t i)
{
	struct record_begin begin;

	assert_true(entry[i][0] == RECORD_BEGIN && entry[i][1] == RECORD_VERSION);
	memcpy(&begin, entry[i + 1], sizeof(begin));
	return begin;
}

/* ---- a handle, and batches for it ---- */

static inline struct tokend handle(uint64_t rank, uint64_t world, uint64_t taken)
{
	struct tokend t = {.alive = &alive,
		.rank = rank,
		.world = world,
		.micro_batch = MICRO,
		.step = world * MICRO,
		.taken = taken,
		.end = UINT64_MAX,
		.peer = 3};

	t.origin = (struct cursor){
		.stream = "train", .seed = 42, .seq_len = 32, .extra = 1, .stride = 32};
	return t;
}

/* Tokens of a row, different at every position. */
static inline void fill(uint64_t position, uint16_t *tokens)
{
	for (int i = 0; i < WINDOW; i++)
		tokens[i] = (uint16_t)(position * 31 + (uint64_t)i * 7);
}

static inline uint64_t checksum_at(uint64_t position)
{
	uint16_t tokens[WINDOW];

	fill(position, tokens);
	return record_checksum(position, tokens, sizeof(tokens));
}

static inline int take(struct tokend *t, uint32_t valid)
{
	struct tokend_row row[MICRO];
	uint16_t tokens[MICRO][WINDOW];
	uint64_t next = t->taken + t->step;

	for (uint32_t i = 0; i < MICRO; i++) {
		row[i].position = i < valid ? t->taken + t->rank * MICRO + i : TOKEND_PADDING;
		fill(row[i].position, tokens[i]);
	}

	int r = recording_rows(t, row, valid, tokens, ROW_BYTES, next);

	if (r == 0)
		t->taken = next;
	return r;
}

static inline void assert_rows(size_t at, uint64_t first, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(entry[at + i][0], first + i);
		assert_true(entry[at + i][1] == checksum_at(first + i));
	}
}

static inline void limit_files_to(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes == RLIM_INFINITY || bytes > limit.rlim_max ? limit.rlim_max : bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static inline void assert_move(size_t at, uint64_t left, uint64_t position)
{
	assert_int_equal(begin_at(at).left, left);
	assert_int_equal(begin_at(at).position, position);
}

#endif
