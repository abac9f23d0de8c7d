/* Reading shards, with real files on a real file system; every test runs with each backend,
 * buffered and direct. */
#include "tests/unit/shelf.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- right bytes ---- */

static void reads_of_all_sizes(void **state)
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

static void first_and_last_token(void **state)
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

static void hundred_thousand_reads(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(5, 100000);
	struct checker checker;

	checker_open(&checker, mode, 8);
	read_random(&checker, shelf, mode->direct ? 10000 : 100000, WINDOW_BYTES / 2);
	checker_close(&checker);
	shelf_free(shelf);
}

static void more_files_than_the_table(void **state)
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

/* A shard that is read all the time must not keep the only entry from the others. */
static void a_busy_file_lets_others_in(void **state)
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

static void drop_from_cache(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_return_code(fdatasync(fd), errno);
	assert_return_code(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), errno);
	close(fd);
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

static void reads_of_what_is_not_cached(void **state)
{
	struct shelf *shelf = shelf_new(8, LARGEST_BYTES / 2);
	struct checker checker;

	for (unsigned round = 0; round < 5; round++) {
		for (unsigned s = 0; s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		if (is_cached(shelf_path(shelf, 0))) {
			shelf_free(shelf);
			skip(); /* TMPDIR is a tmpfs */
		}
		checker_open(&checker, *state, 8);
		read_random(&checker, shelf, 500, WINDOW_BYTES / 2);
		checker_close(&checker);
	}
	shelf_free(shelf);
}

/* ---- tokens that do not lie in a row ---- */

/*
 * A format of two pieces: the second half of the tokens lies before the first.
 */
struct shard_index {
	uint64_t tokens, half;
};

static atomic_uint opened, held, held_most;

enum { LARGE_TOKENS = 4000 }; /* the index of a shard of so many is a large one */

static bool swapped_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	(void)hint, (void)why, (void)why_bytes;
	facts->type = SHARD_U16;
	facts->tokens = (b->size - DATA_AT) / 2;
	return true;
}

static struct shard_index *swapped_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct shard_index *index = malloc(sizeof(*index));

	(void)b, (void)hint, (void)why, (void)why_bytes;
	atomic_fetch_add(&opened, 1);
	unsigned now = atomic_fetch_add(&held, 1) + 1, most = atomic_load(&held_most);

	while (now > most && !atomic_compare_exchange_weak(&held_most, &most, now))
		;
	*index = (struct shard_index){facts->tokens, facts->tokens / 2};
	facts->index_bytes = facts->tokens == LARGE_TOKENS ? 16000 : 1000;
	return index;
}

static void swapped_close(struct shard_index *index)
{
	atomic_fetch_sub(&held, 1);
	free(index);
}

static uint64_t swapped_extent(const struct shard_index *index, uint64_t token, uint64_t *byte,
	char *why, size_t why_bytes)
{
	uint64_t half = index->half, rest = index->tokens - half;

	(void)why, (void)why_bytes;
	*byte = DATA_AT + 2 * (token < half ? rest + token : token - half);
	return token < half ? half - token : index->tokens - token;
}

static const struct shard_format swapped = {
	.name = "swapped",
	.describe = swapped_describe,
	.open = swapped_open,
	.close = swapped_close,
	.extent = swapped_extent,
};

static struct shelf *shelf_of_swapped(unsigned shards, uint64_t tokens)
{
	struct shelf *shelf = shelf_new(shards, tokens);

	shelf->dataset.plain = false;
	shelf->dataset.format = &swapped;
	for (unsigned s = 0; s < shards; s++) {
		size_t n = 2 * shelf->tokens[s], half = 2 * (shelf->tokens[s] / 2);
		char *lie = malloc(n);

		assert_non_null(lie);
		memcpy(lie, shelf->bytes[s] + half, n - half);
		memcpy(lie + (n - half), shelf->bytes[s], half);
		write_file(shelf_path(shelf, s), lie, n);
		identify(shelf, s);
		free(lie);
	}
	return shelf;
}

static void shards_that_are_not_plain(void **state)
{
	struct shelf *shelf = shelf_of_swapped(8, LARGEST_BYTES / 2 - 200);
	struct checker checker;

	for (unsigned round = 0; round < 4; round++) {
		for (unsigned s = 0; round % 2 == 0 && s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		checker_open(&checker, *state, 6);
		read_random(&checker, shelf, 1000, WINDOW_BYTES / 2);
		for (unsigned s = 0; s < 8; s++)
			assert_reads(&checker, shelf, s);
		checker_close(&checker);
	}
	shelf_free(shelf);
}

/* How many indexes are made for reads of shards 0, 1, …, 7 three times over. */
static unsigned indexes_made(const struct mode *mode, uint64_t indexes_bytes)
{
	struct shelf *shelf = shelf_of_swapped(8, 5000);
	struct reader_options options = options_of(mode, 16);
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct checker checker;

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	options.indexes_bytes = indexes_bytes;
	atomic_store(&opened, 0);
	checker_use(&checker, reader_open(&options, note, sizeof(note), &fault));
	atomic_store(&held_most, 0);
	for (unsigned i = 0; i < 24; i++)
		assert_reads(&checker, shelf, i % 8);
	/* One after another: never more than fit, not even while the next is opened. */
	if (indexes_bytes > 0)
		assert_in_range(
			atomic_load(&held_most), 1, indexes_bytes / (1000 + sizeof(struct shard)));
	read_random(&checker, shelf, 500, WINDOW_BYTES / 2); /* many at once, too */
	checker_close(&checker);
	shelf_free(shelf);
	return atomic_load(&opened);
}

static void indexes_keep_to_their_share(void **state)
{
	assert_int_equal(indexes_made(*state, 100000), 8);
	assert_true(indexes_made(*state, 5000) >= 24);
	assert_true(indexes_made(*state, 0) >= 24);
}

/* Where all of them fit, a large one among them or many that are opened at once cost none its
 * place. */
static void indexes_that_fit_stay(void **state)
{
	struct shelf *shelf = shelf_of_swapped(8, LARGE_TOKENS);
	const struct mode *mode = *state;
	struct reader_options options = options_of(mode, 16);
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct checker checker;

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	options.indexes_bytes = 64000;
	atomic_store(&opened, 0);
	checker_use(&checker, reader_open(&options, note, sizeof(note), &fault));
	assert_reads(&checker, shelf, 0);
	for (unsigned s = 1; s < 8; s++)
		checker_queue(&checker, shelf, s, 0, 100);
	reader_commit(checker.reader);
	while (checker.in_flight > 0)
		reap_right(&checker, shelf);
	assert_reads(&checker, shelf, 0);
	assert_int_equal(atomic_load(&opened), 8);
	checker_close(&checker);
	shelf_free(shelf);
}

/* ---- files that changed ---- */

static void truncated_when_open(void **state)
{
	struct shelf *shelf = shelf_new(1, 50000);
	struct checker checker;
	struct reader_done done;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	assert_return_code(truncate(shelf_path(shelf, 0), DATA_AT + 9001), errno);
	done = read_once(&checker, shelf, 0, 4000, 501); /* one byte more than there is */
	assert_fault(&done, FAULT_CHANGED, 0);
	done = read_once(&checker, shelf, 0, 40000, 500);
	assert_fault(&done, FAULT_CHANGED, 0);
	/* Nobody knows whether what is left is as it was. */
	assert_changed(&checker, shelf, 0, "it was truncated: size was 101030 ");
	checker_close(&checker);
	shelf_free(shelf);
}

static void truncated_before_open(void **state)
{
	struct shelf *shelf = shelf_new(1, 50000);
	struct checker checker;

	checker_open(&checker, *state, 4);
	assert_return_code(truncate(shelf_path(shelf, 0), 100), errno);
	assert_changed(&checker, shelf, 0, "size was 101030 ");
	checker_close(&checker);
	shelf_free(shelf);
}

/* Another file of the same size, put there by rename: the open one goes on being read, a fresh open
 * refuses.
 */
static void replaced_by_rename(void **state)
{
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;
	char other[80];

	checker_open(&checker, *state, 1);
	assert_reads(&checker, shelf, 0);
	snprintf(other, sizeof(other), "%s/new", shelf->root);
	write_file(other, shelf->bytes[1], 6000);
	assert_return_code(rename(other, shelf_path(shelf, 0)), errno);
	assert_reads(&checker, shelf, 0);
	assert_reads(&checker, shelf, 1); /* takes the only entry */
	assert_changed(&checker, shelf, 0, "inode was ");
	assert_reads(&checker, shelf, 1);
	checker_close(&checker);
	shelf_free(shelf);
}

static void rewritten_in_place(void **state)
{
	struct shelf *shelf = shelf_new(1, 3000);
	struct checker checker;
	struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000, .tv_nsec = 5}};

	checker_open(&checker, *state, 4);
	assert_return_code(utimensat(AT_FDCWD, shelf_path(shelf, 0), times, 0), errno);
	assert_changed(&checker, shelf, 0, "mtime (ns) was ");
	identify(shelf, 0);
	assert_reads(&checker, shelf, 0);
	checker_close(&checker);
	shelf_free(shelf);
}

/* The shard at @path was moved to @aside; @other has been put in its place. */
static void check_other(
	struct checker *checker, const struct shelf *shelf, const char *aside, int error)
{
	char path[256];

	snprintf(path, sizeof(path), "%s", shelf_path(shelf, 0));
	if (error)
		assert_errno(checker, shelf, 0, error);
	else
		assert_changed(checker, shelf, 0, "size was ");
	if (remove(path) < 0)
		assert_int_equal(errno, ENOENT);
	assert_return_code(rename(aside, path), errno);
	assert_reads(checker, shelf, 0); /* the failure was not kept */
	assert_reads(checker, shelf, 1); /* gives it up */
	assert_return_code(rename(path, aside), errno);
}

static void missing_or_not_a_file(void **state)
{
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;
	char path[256], aside[80];

	checker_open(&checker, *state, 1);
	snprintf(path, sizeof(path), "%s", shelf_path(shelf, 0));
	snprintf(aside, sizeof(aside), "%s/aside", shelf->root);
	assert_return_code(rename(path, aside), errno);
	check_other(&checker, shelf, aside, ENOENT);
	assert_return_code(symlink(path, path), errno);
	check_other(&checker, shelf, aside, ELOOP);
	assert_return_code(mkfifo(path, 0600), errno);
	check_other(&checker, shelf, aside, 0);
	assert_return_code(mkdir(path, 0700), errno);
	check_other(&checker, shelf, aside, 0);
	assert_return_code(rename(aside, path), errno);
	checker_close(&checker);
	shelf_free(shelf);
}

/* All who wait for one opening learn its end; the other shard's reads are not touched by it. */
static void many_wait_for_one_that_fails(void **state)
{
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;
	struct reader_done done[DEPTH];
	unsigned failed = 0, right = 0;

	checker_open(&checker, *state, 1);
	assert_return_code(unlink(shelf_path(shelf, 0)), errno);
	for (unsigned i = 0; i < DEPTH; i++)
		checker_queue(&checker, shelf, i % 2, i, 100);
	reader_commit(checker.reader);
	while (checker.in_flight > 0) {
		unsigned n = checker_reap(&checker, done, DEPTH, 10000);

		for (unsigned i = 0; i < n; i++) {
			if (checker.read[done[i].tag].shard == 0) {
				assert_fault(&done[i], FAULT_IO, ENOENT);
				failed++;
			} else {
				assert_null(done[i].fault);
				assert_right_bytes(&checker, shelf, done[i].tag);
				right++;
			}
		}
	}
	assert_int_equal(failed, DEPTH / 2);
	assert_int_equal(right, DEPTH / 2);
	checker_close(&checker);
	shelf_free(shelf);
}

/* sysfs has files of a size that refuse O_DIRECT and know no RWF_NOWAIT. */
static void file_system_without_direct(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(1, 3000);
	struct checker checker;
	struct stat st;
	char paths[] = "vmlinux", root[] = "/sys/kernel/btf";
	int fd = open("/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 2 * LARGEST_BYTES) {
		shelf_free(shelf);
		skip();
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
		mode->direct ? "direct: /sys/kernel/btf/vmlinux: its file system refuses O_DIRECT: "
			       "such shards are read through the page cache"
			     : "");
	checker_close(&checker);
	close(fd);
	shelf->dataset.root = shelf->root;
	shelf->dataset.paths = shelf->paths;
	shelf_free(shelf);
}

/* ---- waiting ---- */

static void timeout_returns(void **state)
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

/* The timeout is far beyond what a test may take: only the kick ends the wait. */
static void kick_wakes(void **state)
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
	reader_kick(checker.reader); /* before the wait; two are as good as one */
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

/* One after the other, with reads between: a lost kick hangs. */
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

static void close_with_reads_in_flight(void **state)
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

/* As the daemon does: opened by one thread, used by a second, closed by the first when that has
 * ended. */
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

/* ---- in a child: what holds for a whole process ---- */

/* Runs @body in a child, whose exit status tells; asserts of cmocka do not work there. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static void in_child(void (*body)(const struct mode *mode, struct shelf *shelf),
	const struct mode *mode, struct shelf *shelf)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		body(mode, shelf);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Reads each shard as a whole; the errno of the first that failed, -1 if something else is wrong.
 */
static int read_all(struct reader *reader, const struct shelf *shelf)
{
	static char to[LARGEST_BYTES];
	struct reader_done done;

	for (uint64_t s = 0; s < shelf->dataset.table.shards; s++) {
		uint64_t tokens = shelf->tokens[s];

		reader_queue(reader, &(struct reader_read){.dataset = &shelf->dataset,
					     .shard = s,
					     .tokens = tokens,
					     .to = to});
		reader_commit(reader);
		if (reader_reap(reader, &done, 1, 10000) != 1)
			return -1;
		if (done.fault)
			return done.fault->error ? done.fault->error : -1;
		if (memcmp(to, shelf->bytes[s], tokens * 2) != 0)
			return -1;
	}
	return 0;
}

static void forbid_uring(int error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = COUNT(filter), .filter = filter};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void forbidden(
	const struct mode *mode, struct shelf *shelf, int error, const char *expected_note)
{
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader_options options = options_of(mode, 4);

	forbid_uring(error);
	options.io = CONFIG_IO_URING;
	CHECK(!reader_open(&options, note, sizeof(note), &fault));
	CHECK(fault.error == error && strcmp(fault.field, "io") == 0);
	CHECK(strncmp(fault.text, "io: uring: io_uring_setup: E", 28) == 0);
	options.io = CONFIG_IO_AUTO;

	struct reader *reader = reader_open(&options, note, sizeof(note), &fault);

	CHECK(reader);
	CHECK(strcmp(reader_name(reader), "pread") == 0);
	CHECK(strcmp(note, expected_note) == 0);
	CHECK(read_all(reader, shelf) == 0);
	reader_close(reader);
}

static void forbidden_eperm(const struct mode *mode, struct shelf *shelf)
{
	forbidden(mode, shelf, EPERM,
		"io_uring is forbidden here (EPERM): reading with a pool of 32 pread threads");
}

static void forbidden_enosys(const struct mode *mode, struct shelf *shelf)
{
	forbidden(mode, shelf, ENOSYS,
		"io_uring is forbidden here (ENOSYS): reading with a pool of 32 pread threads");
}

static void forbidden_enomem(const struct mode *mode, struct shelf *shelf)
{
	forbidden(mode, shelf, ENOMEM,
		"io_uring does not work here (io_uring_setup: ENOMEM): reading with a pool of 32 "
		"pread "
		"threads");
}

static void falls_back_where_uring_is_forbidden(void **state)
{
	struct shelf *shelf = shelf_new(6, 20000);

	in_child(forbidden_eperm, *state, shelf);
	in_child(forbidden_enosys, *state, shelf);
	in_child(forbidden_enomem, *state, shelf);
	shelf_free(shelf);
}

static void limit_descriptors(unsigned more)
{
	int next = dup(0);
	struct rlimit limit = {.rlim_cur = (rlim_t)next + more, .rlim_max = (rlim_t)next + more};

	CHECK(next > 0);
	close(next);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* The table would hold 16 files, the process may have three more. */
static void few_descriptors(const struct mode *mode, struct shelf *shelf)
{
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader_options options = options_of(mode, 16);
	struct reader *reader = reader_open(&options, note, sizeof(note), &fault);

	CHECK(reader);
	limit_descriptors(3);
	for (int i = 0; i < 5; i++)
		CHECK(read_all(reader, shelf) == 0);
	reader_close(reader);
}

static void no_descriptors(const struct mode *mode, struct shelf *shelf)
{
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader_options options = options_of(mode, 16);
	struct reader *reader = reader_open(&options, note, sizeof(note), &fault);

	CHECK(reader);
	limit_descriptors(1);
	int taken = dup(0);

	CHECK(taken >= 0);
	CHECK(read_all(reader, shelf) == EMFILE);
	close(taken);
	CHECK(read_all(reader, shelf) == 0);
	reader_close(reader);
}

/* Megatron's .idx beside each shard: its descriptor is one more while the shard is opened. */
static void index_shelf(struct shelf *shelf, bool there)
{
	struct __attribute__((packed)) {
		char magic[9];
		uint64_t version;
		uint8_t type; /* u16 */
		uint64_t sequences, documents;
		uint32_t length;
		uint64_t pointer, document[2];
	} index = {"MMIDIDX\0", 1, 8, 1, 2, 0, DATA_AT, {0, 1}};

	for (uint64_t s = 0; s < shelf->dataset.table.shards; s++) {
		char path[256];

		snprintf(path, sizeof(path), "%s/%03u.idx", shelf->root, (unsigned)s);
		if (!there) {
			assert_return_code(unlink(path), errno);
			continue;
		}
		index.length = (uint32_t)shelf->tokens[s];
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

		assert_true(fd >= 0);
		struct stat st;

		assert_int_equal(write(fd, &index, sizeof(index)), sizeof(index));
		assert_return_code(fstat(fd, &st), errno);
		shelf->beside[s] = bytes_id(&st);
		close(fd);
	}
	shelf->dataset.plain = false;
	shelf->dataset.format = &shard_megatron;
}

static void short_of_descriptors_for_indexes(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(12, 3000);

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	index_shelf(shelf, true);
	in_child(few_descriptors, mode, shelf);
	index_shelf(shelf, false);
	shelf_free(shelf);
}

static struct {
	const struct io_ops *real;
	unsigned calls;
} pool_use;

static void count_calls(void *backend, struct io_work *work)
{
	pool_use.calls += work->call != NULL;
	pool_use.real->submit(backend, work);
}

/* Flat files from their first byte on; somebody wants documents, and a manifest cannot say who has
 * an index.
 */
static void flat_shelf(struct shelf *shelf, enum shard_type type)
{
	struct dataset *d = &shelf->dataset;

	for (uint64_t s = 0; s < d->table.shards; s++)
		shelf->tokens[s] = (2 * shelf->tokens[s] + DATA_AT) / shard_type_bytes(type);
	d->plain = type == SHARD_U16;
	d->data_at = 0;
	d->format = &shard_flat;
	d->hint = (struct shard_hint){.type = type, .documents = true};
	d->marked = d->has_eos = true;
	d->eos = 0;
}

static void read_documents(struct checker *checker, const struct shelf *shelf, uint64_t token)
{
	uint16_t tokens[64];
	uint32_t count = 0, start[64], found = 0;
	struct reader_done done;
	const struct reader_read read = {.dataset = &shelf->dataset,
		.token = token,
		.tokens = COUNT(tokens),
		.to = tokens,
		.annotations = {.count = &count, .start = start}};

	reader_queue(checker->reader, &read);
	reader_commit(checker->reader);
	assert_int_equal(reader_reap(checker->reader, &done, 1, 10000), 1);
	assert_null(done.fault);
	for (uint32_t i = 1; i < COUNT(tokens); i++)
		if (tokens[i - 1] == shelf->dataset.eos)
			assert_int_equal(start[found++], i);
	assert_int_equal(count, found);
}

/* What the tokens say is said at once, even if other shards of the dataset had an index to be
 * looked into. */
static bool knows_nowait(const char *path)
{
	char byte;
	struct iovec to = {&byte, 1};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool knows = preadv2(fd, &to, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN;

	close(fd);
	return knows;
}

static void annotations_of_tokens(const struct mode *mode, enum shard_type type)
{
	struct shelf *shelf = shelf_new(1, 3000);
	struct reader_options options = options_of(mode, 1);
	struct io_ops ops;
	struct checker checker;
	struct fault fault;

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	pool_use.real = mode->io == CONFIG_IO_URING ? &uring_ops : &pread_ops;
	pool_use.calls = 0;
	ops = *pool_use.real;
	ops.submit = count_calls;
	flat_shelf(shelf, type);
	checker_use(&checker, reader_open_with(&ops, &options, &fault));
	for (uint64_t token = 0; token < 20; token++)
		read_documents(&checker, shelf, DATA_AT / 2 - token);
	if (knows_nowait(shelf_path(shelf, 0))) /* the file was opened, then the shard; with
						   O_DIRECT it was sampled once */
		assert_in_range(pool_use.calls, 2, 2 + mode->direct);
	checker_close(&checker);
	shelf_free(shelf);
}

static void annotations_of_tokens_need_no_pool(void **state)
{
	annotations_of_tokens(*state, SHARD_U16);
	annotations_of_tokens(*state, SHARD_U8); /* converted, where they lie in memory */
}

static void short_of_descriptors(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(12, 3000);

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	in_child(few_descriptors, mode, shelf);
	in_child(no_descriptors, mode, shelf);
	shelf_free(shelf);
}

static void memory_is_told(void **state)
{
	const struct mode *mode = *state;
	struct reader_options options = options_of(mode, 4);
	uint64_t bytes = reader_memory(&options);

	assert_true(bytes > (mode->direct ? DEPTH * (uint64_t)LARGEST_BYTES : 0));
	assert_true(bytes < (mode->direct ? DEPTH * (uint64_t)LARGEST_BYTES : 0) + 1000000);
}

static const struct test_case cases[] = {
	CASE(reads_of_all_sizes),
	CASE(first_and_last_token),
	CASE(hundred_thousand_reads),
	CASE(more_files_than_the_table),
	CASE(a_busy_file_lets_others_in),
	CASE(reads_of_what_is_not_cached),
	CASE(shards_that_are_not_plain),
	CASE(indexes_keep_to_their_share),
	CASE(indexes_that_fit_stay),
	CASE(truncated_when_open),
	CASE(truncated_before_open),
	CASE(replaced_by_rename),
	CASE(rewritten_in_place),
	CASE(missing_or_not_a_file),
	CASE(many_wait_for_one_that_fails),
	CASE(file_system_without_direct),
	CASE(timeout_returns),
	CASE(kick_wakes),
	CASE(no_kick_is_lost),
	CASE(close_with_reads_in_flight),
	CASE(close_after_the_reading_thread),
	CASE(falls_back_where_uring_is_forbidden),
	CASE(short_of_descriptors),
	CASE(short_of_descriptors_for_indexes),
	CASE(annotations_of_tokens_need_no_pool),
	CASE(memory_is_told),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
