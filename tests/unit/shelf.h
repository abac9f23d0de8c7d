/*
 * For tests of the reader: a dataset of real files in its own directory, and a checker that
 * compares every byte that is read.
 */
#ifndef TEST_SHELF_H
#define TEST_SHELF_H

#include "daemon/io/io.h"
#include "daemon/reader/reader.h"
#include "tests/unit/rng.h"
#include "tests/unit/skip.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
	DEPTH = 64,
	DATA_AT = 1030, /* not aligned for O_DIRECT */
	WINDOW_BYTES = 4098,
	LARGEST_BYTES = 400000,
	SHARDS_MOST = 64,
};

struct mode {
	const char *name;
	enum config_io io;
	bool direct;
};

static const struct mode modes[] = {
	{"uring", CONFIG_IO_URING, false},
	{"uring direct", CONFIG_IO_URING, true},
	{"pread", CONFIG_IO_PREAD, false},
	{"pread direct", CONFIG_IO_PREAD, true},
};

/* ---- a dataset in a directory of its own ---- */

struct shelf {
	struct dataset dataset;
	struct config_dataset config;
	uint64_t tokens[SHARDS_MOST];
	uint32_t path_at[SHARDS_MOST];
	struct dataset_identity identity[SHARDS_MOST];
	uint32_t sides[SHARDS_MOST]; /* all 0 */
	char paths[SHARDS_MOST * 8];
	char root[64];
	char *bytes[SHARDS_MOST]; /* the tokens of each shard */
};

static inline char *shelf_path(const struct shelf *shelf, uint64_t shard)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", shelf->root, shelf->paths + shelf->path_at[shard]);
	return path;
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
	static const char header[DATA_AT];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct iovec parts[] = {{(void *)header, sizeof(header)}, {(void *)bytes, n}};

	assert_true(fd >= 0);
	assert_int_equal(writev(fd, parts, 2), sizeof(header) + n);
	assert_return_code(close(fd), errno);
}

static inline void identify(struct shelf *shelf, uint64_t shard)
{
	struct stat st;

	assert_return_code(stat(shelf_path(shelf, shard), &st), errno);
	shelf->identity[shard] = (struct dataset_identity){
		.inode = st.st_ino,
		.mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec,
		.bytes = (uint64_t)st.st_size,
	};
}

static inline void add_shard(struct shelf *shelf, uint64_t tokens, struct rng *rng)
{
	uint64_t shard = shelf->dataset.table.shards++;
	size_t n = tokens * shelf->dataset.token_bytes;

	assert_true(shard < SHARDS_MOST);
	shelf->tokens[shard] = tokens;
	shelf->path_at[shard] = (uint32_t)(shard * 8);
	snprintf(shelf->paths + shard * 8, 8, "%03u.bin", (unsigned)shard);
	shelf->bytes[shard] = malloc(n);
	assert_non_null(shelf->bytes[shard]);
	for (size_t i = 0; i < n; i++)
		shelf->bytes[shard][i] = (char)(rng_next(rng) >> 32);
	write_file(shelf_path(shelf, shard), shelf->bytes[shard], n);
	identify(shelf, shard);
}

/* @shards shards of about @tokens, each with another length. */
static inline struct shelf *shelf_new(unsigned shards, uint64_t tokens)
{
	struct shelf *shelf = calloc(1, sizeof(*shelf));
	const char *tmp = getenv("TMPDIR");
	struct rng rng = {.state = 7};

	assert_non_null(shelf);
	snprintf(shelf->root, sizeof(shelf->root), "%s/tokend-reader-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(shelf->root));
	shelf->config.shuffle = ORDER_GLOBAL;
	shelf->dataset = (struct dataset){
		.config = &shelf->config,
		.root = shelf->root,
		.table = {.tokens = shelf->tokens},
		.token_bytes = 2,
		.plain = true,
		.data_at = DATA_AT,
		.paths = shelf->paths,
		.path_at = shelf->path_at,
		.identity = shelf->identity,
		.sides = shelf->sides,
	};
	for (unsigned s = 0; s < shards; s++)
		add_shard(shelf, tokens + s * 13, &rng);
	return shelf;
}

static inline void shelf_free(struct shelf *shelf)
{
	for (uint64_t s = 0; s < shelf->dataset.table.shards; s++) {
		if (remove(shelf_path(shelf, s)) < 0)
			assert_int_equal(errno, ENOENT);
		free(shelf->bytes[s]);
	}
	assert_return_code(rmdir(shelf->root), errno);
	free(shelf);
}

/* ---- a reader, and reads whose bytes are compared ---- */

struct checker {
	struct reader *reader;
	unsigned in_flight;
	uint64_t done;
	struct reader_read read[DEPTH]; /* by tag */
	bool busy[DEPTH];
	char *to; /* [DEPTH] of LARGEST_BYTES */
};

static inline struct reader_options options_of(const struct mode *mode, unsigned files)
{
	return (struct reader_options){
		.io = mode->io,
		.direct = mode->direct,
		.depth = DEPTH,
		.files = files,
		.largest_window_bytes = LARGEST_BYTES,
	};
}

static inline bool uring_works(void)
{
	struct fault fault;
	void *backend = uring_ops.open(4, &fault);

	if (backend)
		uring_ops.close(backend);
	return backend;
}

static inline void skip_without_uring(const struct mode *mode)
{
	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip_because("no io_uring here");
}

static inline void checker_use(struct checker *checker, struct reader *reader)
{
	*checker = (struct checker){.reader = reader, .to = malloc((size_t)DEPTH * LARGEST_BYTES)};
	assert_non_null(reader);
	assert_non_null(checker->to);
}

static inline void checker_close(struct checker *checker)
{
	reader_close(checker->reader);
	free(checker->to);
}

static inline char *checker_to(const struct checker *checker, uint64_t tag)
{
	return checker->to + tag * LARGEST_BYTES;
}

static inline void checker_queue(struct checker *checker, const struct shelf *shelf, uint64_t shard,
	uint64_t token, uint64_t tokens)
{
	uint64_t tag = 0;

	while (checker->busy[tag])
		tag++;
	assert_true(tag < DEPTH && tokens * 2 <= LARGEST_BYTES);
	checker->busy[tag] = true;
	checker->in_flight++;
	checker->read[tag] = (struct reader_read){
		.tag = tag,
		.dataset = &shelf->dataset,
		.shard = shard,
		.token = token,
		.tokens = tokens,
		.to = checker_to(checker, tag),
	};
	memset(checker->read[tag].to, 0, tokens * 2);
	reader_queue(checker->reader, &checker->read[tag]);
}

static inline void assert_right_bytes(
	const struct checker *checker, const struct shelf *shelf, uint64_t tag)
{
	const struct reader_read *read = &checker->read[tag];

	assert_memory_equal(
		read->to, shelf->bytes[read->shard] + read->token * 2, read->tokens * 2);
}

/* Reaps reads, and checks that each tag is returned once. */
static inline unsigned checker_reap(
	struct checker *checker, struct reader_done *done, unsigned max, int timeout_ms)
{
	unsigned n = reader_reap(checker->reader, done, max, timeout_ms);

	for (unsigned i = 0; i < n; i++) {
		assert_true(done[i].tag < DEPTH && checker->busy[done[i].tag]);
		checker->busy[done[i].tag] = false;
		checker->in_flight--;
		checker->done++;
	}
	return n;
}

static inline void reap_right(struct checker *checker, const struct shelf *shelf)
{
	struct reader_done done[DEPTH];
	unsigned n = checker_reap(checker, done, 1 + checker->done % DEPTH, 10000);

	assert_true(n > 0);
	for (unsigned i = 0; i < n; i++) {
		assert_null(done[i].fault);
		assert_right_bytes(checker, shelf, done[i].tag);
	}
}

static inline void queue_random(
	struct checker *checker, const struct shelf *shelf, struct rng *rng, uint64_t tokens)
{
	uint64_t shard = rng_below(rng, shelf->dataset.table.shards);

	checker_queue(
		checker, shelf, shard, rng_below(rng, shelf->tokens[shard] - tokens + 1), tokens);
}

static inline void read_random(
	struct checker *checker, const struct shelf *shelf, uint64_t reads, uint64_t tokens)
{
	struct rng rng = {.state = 11};
	uint64_t end = checker->done + reads;

	while (checker->done < end) {
		while (checker->in_flight < DEPTH && checker->done + checker->in_flight < end)
			queue_random(checker, shelf, &rng, tokens);
		reader_commit(checker->reader);
		reap_right(checker, shelf);
	}
	assert_int_equal(checker->in_flight, 0);
}

static inline struct reader_done read_once(struct checker *checker, const struct shelf *shelf,
	uint64_t shard, uint64_t token, uint64_t tokens)
{
	struct reader_done done;

	assert_int_equal(checker->in_flight, 0);
	checker_queue(checker, shelf, shard, token, tokens);
	reader_commit(checker->reader);
	assert_int_equal(checker_reap(checker, &done, 1, 10000), 1);
	return done;
}

static inline void assert_reads(struct checker *checker, const struct shelf *shelf, uint64_t shard)
{
	struct reader_done done = read_once(checker, shelf, shard, 1, shelf->tokens[shard] - 1);

	assert_null(done.fault);
	assert_right_bytes(checker, shelf, done.tag);
}

static inline void assert_fault(const struct reader_done *done, enum fault_code code, int error)
{
	assert_non_null(done->fault);
	assert_int_equal(done->fault->code, code);
	assert_int_equal(done->fault->error, error);
	assert_string_not_equal(done->fault->text, "");
	assert_null(strchr(done->fault->text, '\n'));
}

static inline void assert_errno(
	struct checker *checker, const struct shelf *shelf, uint64_t shard, int error)
{
	struct reader_done done = read_once(checker, shelf, shard, 0, 1);

	assert_fault(&done,
		error == ENFILE	   ? FAULT_DESCRIPTORS
		: error == EBADMSG ? FAULT_DATA
				   : FAULT_IO,
		error);
}

static inline unsigned open_below(const char *root)
{
	unsigned count = 0;

	for (int fd = 0; fd < 1024; fd++) {
		char link[64], path[256] = "";

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		if (readlink(link, path, sizeof(path) - 1) > 0 &&
			strncmp(path, root, strlen(root)) == 0)
			count++;
	}
	return count;
}

struct test_case {
	const char *name;
	void (*run)(void **state); /* a const struct mode */
	int (*teardown)(void **state);
};
#define CASE(function)                                                                             \
	{                                                                                          \
#function, function, NULL                                                          \
	}

/* Runs every case in every mode. */
static inline int run_cases(const struct test_case *cases, unsigned count)
{
	struct CMUnitTest *tests = calloc(count * COUNT(modes), sizeof(*tests));
	char(*names)[80] = calloc(count * COUNT(modes), sizeof(*names));
	int failed = 1;

	for (unsigned i = 0; tests && names && i < count * COUNT(modes); i++) {
		const struct mode *mode = &modes[i % COUNT(modes)];
		const struct test_case *test = &cases[i / COUNT(modes)];

		snprintf(names[i], sizeof(names[i]), "%s [%s]", test->name, mode->name);
		tests[i] = (struct CMUnitTest){
			names[i], test->run, NULL, test->teardown, (void *)(uintptr_t)mode};
	}
	if (tests && names)
		failed = _cmocka_run_group_tests("reader", tests, count * COUNT(modes), NULL, NULL);
	free(tests);
	free(names);
	return failed;
}

#endif
