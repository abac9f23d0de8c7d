/*
 * A reader with real files on a real file system: the right bytes, and the events that end a wait.
 * Every test runs with each backend, buffered and direct.
 */
#include "tests/unit/shelf.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- right bytes ---- */

static void reads_of_all_sizes_are_right(void **state)
{
	struct shelf *shelf = shelf_new(7, LARGEST_BYTES / 2 + 5000);
	struct checker checker;

	checker_open(&checker, *state, 16);
	for (uint64_t tokens = 1; tokens <= LARGEST_BYTES / 2; tokens = tokens * 3 + 1)
		read_random(&checker, shelf, 150, tokens);
	read_random(&checker, shelf, 20, LARGEST_BYTES / 2);
	assert_string_equal(reader_notes(checker.reader), "");
	checker_close(&checker);
	shelf_free(shelf);
}

static unsigned align_of(unsigned mask, unsigned align)
{
	struct statx found = {.stx_mask = mask, .stx_dio_offset_align = align};

	return io_align(&found);
}

static void the_file_system_says_how_direct_reads_are_aligned(void **state)
{
	(void)state;
	assert_int_equal(align_of(STATX_DIOALIGN, 512), 512);
	assert_int_equal(align_of(STATX_DIOALIGN, 4096), 4096);
	assert_int_equal(align_of(STATX_DIOALIGN, 1), IO_SECTOR);
	assert_int_equal(align_of(STATX_DIOALIGN, 0), IO_ALIGN);
	assert_int_equal(align_of(STATX_DIOALIGN, 1000), IO_ALIGN);
	assert_int_equal(align_of(STATX_DIOALIGN, 65536), IO_ALIGN);
	assert_int_equal(align_of(STATX_BASIC_STATS, 512), IO_ALIGN);
}

static void first_and_last_token_are_read(void **state)
{
	struct shelf *shelf = shelf_new(4, 4096);
	struct checker checker;

	checker_open(&checker, *state, 2);
	for (uint64_t shard = 0; shard < 4; shard++) {
		checker_queue(&checker, shelf, shard, 0, 1);
		checker_queue(&checker, shelf, shard, shelf->tokens[shard] - 1, 1);
		checker_queue(&checker, shelf, shard, 0, shelf->tokens[shard]);
	}
	reader_commit(checker.reader);
	while (checker.in_flight > 0)
		reap_right(&checker, shelf);
	checker_close(&checker);
	shelf_free(shelf);
}

static void a_hundred_thousand_reads_are_right(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(5, 100000);
	struct checker checker;

	checker_open(&checker, mode, 8);
	read_random(&checker, shelf, mode->direct ? 10000 : 100000, WINDOW_BYTES / 2);
	checker_close(&checker);
	shelf_free(shelf);
}

/* Another dataset may get the address of one that was freed. */
static void a_forgotten_dataset_is_opened_again(void **state)
{
	struct shelf *shelf = shelf_new(2, 5000);
	struct checker checker;

	checker_open(&checker, *state, 4);
	for (unsigned round = 0; round < 3; round++) {
		read_random(&checker, shelf, 20, 100);
		struct reader_left *left = NULL;

		reader_forget(checker.reader, &shelf->dataset, 1, &left);
		assert_int_equal(open_below(shelf->root), 2);
		reader_left_close(left);
		assert_int_equal(open_below(shelf->root), 0);
		for (uint64_t s = 0; s < 2; s++) {
			char *path = shelf_path(shelf, s);

			for (uint64_t i = 0; i < 2 * shelf->tokens[s]; i++)
				shelf->bytes[s][i] ^= 1;
			unlink(path);
			write_file(path, shelf->bytes[s], 2 * shelf->tokens[s]);
			identify(shelf, s);
		}
	}
	checker_close(&checker);
	shelf_free(shelf);
}

static void more_files_than_the_table_take_turns(void **state)
{
	struct shelf *shelf = shelf_new(SHARDS_MOST, 5000);

	for (unsigned files = 1; files <= 9; files += 4) {
		struct checker checker;

		checker_open(&checker, *state, files);
		read_random(&checker, shelf, 3000, WINDOW_BYTES / 2);
		assert_int_equal(open_below(shelf->root), files);
		checker_close(&checker);
		assert_int_equal(open_below(shelf->root), 0);
	}
	shelf_free(shelf);
}

/* Reads of a shard that is always in use must not keep the only entry from other shards. */
static void a_busy_file_does_not_keep_other_files_out(void **state)
{
	struct shelf *shelf = shelf_new(2, 5000);
	struct checker checker;
	struct reader_done done[DEPTH];
	uint64_t tokens = 100, rounds = 0;
	bool other = false;

	checker_open(&checker, *state, 1);
	checker_queue(&checker, shelf, 0, 0, tokens);
	checker_queue(&checker, shelf, 1, 0, tokens);
	while (!other && rounds++ < 1000) {
		while (checker.in_flight < DEPTH)
			checker_queue(&checker, shelf, 0, 0, tokens);
		reader_commit(checker.reader);
		unsigned n = checker_reap(&checker, done, 4, 10000);

		for (unsigned i = 0; i < n; i++)
			other |= checker.read[done[i].tag].shard == 1;
	}
	assert_true(other);
	while (checker.in_flight > 0)
		reap_right(&checker, shelf);
	checker_close(&checker);
	shelf_free(shelf);
}

static bool is_cached(const char *path)
{
	char byte;
	struct iovec to = {&byte, 1};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool cached = preadv2(fd, &to, 1, 0, RWF_NOWAIT) != -1 || errno != EAGAIN;

	close(fd);
	return cached;
}

static void uncached_bytes_are_right(void **state)
{
	struct shelf *shelf = shelf_new(8, LARGEST_BYTES / 2);
	struct checker checker;

	for (unsigned round = 0; round < 5; round++) {
		for (unsigned s = 0; s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		if (is_cached(shelf_path(shelf, 0))) {
			shelf_free(shelf);
			skip_because("TMPDIR is a tmpfs");
		}
		checker_open(&checker, *state, 8);
		read_random(&checker, shelf, 500, WINDOW_BYTES / 2);
		checker_close(&checker);
	}
	shelf_free(shelf);
}

/* sysfs has large files, and supports neither O_DIRECT nor RWF_NOWAIT. */
static void a_file_system_without_direct_is_read_buffered(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(1, 3000);
	struct checker checker;
	struct stat st;
	char paths[] = "vmlinux", root[] = "/sys/kernel/btf";
	int fd = open("/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 2 * LARGEST_BYTES) {
		shelf_free(shelf);
		skip_because("no large file in sysfs");
	}
	shelf->dataset.root = root;
	shelf->dataset.paths = paths;
	shelf->dataset.data_at = st.st_size % 2;
	shelf->tokens[0] = (uint64_t)st.st_size / 2;
	shelf->bytes[0] = realloc(shelf->bytes[0], shelf->tokens[0] * 2);
	assert_non_null(shelf->bytes[0]);
	for (uint64_t n = 0; n < shelf->tokens[0] * 2;)
		n += (uint64_t)pread(fd, shelf->bytes[0] + n, shelf->tokens[0] * 2 - n,
			(off_t)(shelf->dataset.data_at + n));
	shelf->identity[0].inode = st.st_ino;
	shelf->identity[0].bytes = (uint64_t)st.st_size;
	shelf->identity[0].mtime_ns =
		(uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
	checker_open(&checker, mode, 4);
	read_random(&checker, shelf, 2000, WINDOW_BYTES / 2);
	read_random(&checker, shelf, 20, LARGEST_BYTES / 2);
	assert_string_equal(reader_notes(checker.reader),
		mode->direct ? "direct: /sys/kernel/btf/vmlinux: its file system refuses O_DIRECT; "
			       "shards there are read through the page cache"
			     : "");
	checker_close(&checker);
	close(fd);
	shelf->dataset.root = shelf->root;
	shelf->dataset.paths = shelf->paths;
	shelf_free(shelf);
}

static void memory_is_reported(void **state)
{
	const struct mode *mode = *state;
	struct reader_options options = options_of(mode, 4);
	uint64_t bytes = reader_memory(&options);

	assert_true(bytes > (mode->direct ? DEPTH * (uint64_t)LARGEST_BYTES : 0));
	assert_true(bytes < (mode->direct ? DEPTH * (uint64_t)LARGEST_BYTES : 0) + 1000000);
}

/* ---- waiting ---- */

static void reap_returns_at_its_timeout(void **state)
{
	struct checker checker;
	struct reader_done done;
	int64_t begin;

	checker_open(&checker, *state, 1);
	for (int i = 0; i < 3; i++) {
		begin = now_ms();
		assert_int_equal(reader_reap(checker.reader, &done, 1, 30), 0);
		assert_true(now_ms() - begin >= 29);
		begin = now_ms();
		assert_int_equal(reader_reap(checker.reader, &done, 1, 0), 0);
		assert_true(now_ms() - begin < 10000);
	}
	checker_close(&checker);
}

static void *kick_later(void *reader)
{
	usleep(20000);
	reader_kick(reader);
	return NULL;
}

/* The timeout is much longer than a test may take, so only the kick ends the wait. */
static void a_kick_ends_a_wait(void **state)
{
	struct checker checker;
	struct reader_done done;
	pthread_t thread;

	checker_open(&checker, *state, 1);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(pthread_create(&thread, NULL, kick_later, checker.reader), 0);
		assert_int_equal(reader_reap(checker.reader, &done, 1, 3600000), 0);
		pthread_join(thread, NULL);
	}
	reader_kick(checker.reader); /* before the wait; two kicks count as one */
	reader_kick(checker.reader);
	assert_int_equal(reader_reap(checker.reader, &done, 1, 3600000), 0);
	assert_int_equal(reader_reap(checker.reader, &done, 1, 30), 0);
	checker_close(&checker);
}

struct kicker {
	struct reader *reader;
	uint64_t kicks;
	_Atomic uint64_t seen;
};

static void *kick_often(void *argument)
{
	struct kicker *kicker = argument;

	for (uint64_t i = 1; i <= kicker->kicks; i++) {
		reader_kick(kicker->reader);
		while (kicker->seen < i)
			sched_yield();
	}
	return NULL;
}

/* Kicks, one after the other, with reads in between: if a kick is lost, the test hangs. */
static void no_kick_is_lost(void **state)
{
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;
	pthread_t thread;
	uint64_t reads = 0;

	checker_open(&checker, *state, 1);
	struct kicker kicker = {.reader = checker.reader, .kicks = 2000};

	assert_int_equal(pthread_create(&thread, NULL, kick_often, &kicker), 0);
	while (kicker.seen < kicker.kicks) {
		struct reader_done done[DEPTH];

		if (reads <= kicker.seen / 3 && checker.in_flight == 0)
			checker_queue(&checker, shelf, reads++ % 2, 0, 100);
		reader_commit(checker.reader);
		if (checker_reap(&checker, done, DEPTH, 3600000) == 0)
			kicker.seen++;
		else
			reader_kick(checker.reader); /* it may have come in the same call */
	}
	pthread_join(thread, NULL);
	checker_close(&checker);
	shelf_free(shelf);
}

static void close_waits_for_reads_in_flight(void **state)
{
	struct shelf *shelf = shelf_new(8, LARGEST_BYTES / 2);
	struct rng rng = {.state = 3};

	for (unsigned round = 0; round < 20; round++) {
		struct checker checker;

		for (unsigned s = 0; s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		checker_open(&checker, *state, 1 + round % 8);
		for (unsigned i = 0; i < DEPTH; i++)
			queue_random(&checker, shelf, &rng, 20000);
		if (round % 2)
			reader_commit(checker.reader);
		checker_close(&checker);
		assert_int_equal(open_below(shelf->root), 0);
	}
	shelf_free(shelf);
}

struct leaving {
	struct checker *checker;
	struct shelf *shelf;
};

static void *queue_and_leave(void *argument)
{
	struct leaving *leaving = argument;
	struct rng rng = {.state = 5};

	for (unsigned i = 0; i < DEPTH; i++)
		queue_random(leaving->checker, leaving->shelf, &rng, 20000);
	reader_commit(leaving->checker->reader);
	return NULL;
}

/* As in the daemon: one thread opens it, a second uses it, and the first closes it after the second
 * has ended. */
static void close_after_the_reading_thread(void **state)
{
	struct shelf *shelf = shelf_new(8, LARGEST_BYTES / 2);

	for (unsigned round = 0; round < 20; round++) {
		struct checker checker;
		pthread_t thread;

		for (unsigned s = 0; s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		checker_open(&checker, *state, 4);
		struct leaving leaving = {.checker = &checker, .shelf = shelf};

		assert_int_equal(pthread_create(&thread, NULL, queue_and_leave, &leaving), 0);
		pthread_join(thread, NULL);
		checker_close(&checker);
		assert_int_equal(open_below(shelf->root), 0);
	}
	shelf_free(shelf);
}

static const struct test_case cases[] = {
	CASE(reads_of_all_sizes_are_right),
#ifdef STATX_DIOALIGN
	CASE(the_file_system_says_how_direct_reads_are_aligned),
#endif
	CASE(first_and_last_token_are_read),
	CASE(a_hundred_thousand_reads_are_right),
	CASE(more_files_than_the_table_take_turns),
	CASE(a_forgotten_dataset_is_opened_again),
	CASE(a_busy_file_does_not_keep_other_files_out),
	CASE(uncached_bytes_are_right),
	CASE(a_file_system_without_direct_is_read_buffered),
	CASE(memory_is_reported),
	CASE(reap_returns_at_its_timeout),
	CASE(a_kick_ends_a_wait),
	CASE(no_kick_is_lost),
	CASE(close_waits_for_reads_in_flight),
	CASE(close_after_the_reading_thread),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
