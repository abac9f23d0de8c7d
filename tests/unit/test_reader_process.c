/*
 * A reader in a process that may not use io_uring, that has few descriptors, or whose invariants
 * are broken: each case in a child.
 */
#include "daemon/reader/state.h"
#include "tests/unit/shelf.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Runs @body in a child, whose exit status is the result. cmocka's asserts do not work there. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: false: %s\n", __FILE__, __LINE__, #condition);     \
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

/* Reads each shard completely. Returns the errno of the first that failed, or -1 if something else
 * is wrong. */
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
		"io_uring is forbidden here (EPERM); reading with a pool of threads, at most 64");
}

static void forbidden_enosys(const struct mode *mode, struct shelf *shelf)
{
	forbidden(mode, shelf, ENOSYS,
		"io_uring is forbidden here (ENOSYS); reading with a pool of threads, at most 64");
}

static void forbidden_enomem(const struct mode *mode, struct shelf *shelf)
{
	forbidden(mode, shelf, ENOMEM,
		"io_uring cannot be used here (io_uring_setup: ENOMEM); reading with a pool of "
		"threads, at most 64");
}

static void falls_back_to_pread_if_io_uring_is_forbidden(void **state)
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

/* The table has room for 16 files, but the process may open only three more. */
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

/* An opening waits until another process, or another stream, has closed a descriptor. */
static void no_descriptors(const struct mode *mode, struct shelf *shelf)
{
	static char to[LARGEST_BYTES];
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader_done done;
	struct reader_options options = options_of(mode, 16);
	struct reader *reader = reader_open(&options, note, sizeof(note), &fault);

	CHECK(reader);
	limit_descriptors(1);
	int taken = dup(0);

	CHECK(taken >= 0);
	reader_queue(
		reader, &(struct reader_read){
				.dataset = &shelf->dataset, .tokens = shelf->tokens[0], .to = to});
	reader_commit(reader);
	for (int i = 0; i < 100 && reader_hang(reader, 0).ticks < 3; i++) {
		CHECK(reader_reap(reader, &done, 1, 100) == 0);
		reader_tick(reader);
	}
	CHECK(reader_hang(reader, 0).ticks >= 3);
	close(taken);
	while (reader_reap(reader, &done, 1, 1000) == 0)
		;
	CHECK(!done.fault);
	CHECK(read_all(reader, shelf) == 0);
	reader_close(reader);
}

/* A Megatron .idx for each shard: while the shard is opened, it needs one more descriptor. */
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
		shelf->sides[s] = bytes_id(&st);
		close(fd);
	}
	shelf->dataset.plain = false;
	shelf->dataset.format = &shard_megatron;
}

static void few_descriptors_are_enough_for_indexes(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(12, 3000);

	skip_without_uring(mode);
	index_shelf(shelf, true);
	in_child(few_descriptors, mode, shelf);
	index_shelf(shelf, false);
	shelf_free(shelf);
}

static void few_descriptors_are_enough(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(12, 3000);

	skip_without_uring(mode);
	in_child(few_descriptors, mode, shelf);
	in_child(no_descriptors, mode, shelf);
	shelf_free(shelf);
}

/* ---- invariants ---- */

static void lose_a_read(struct reader *r)
{
	r->in_flight++;
}

static void lose_a_state(struct reader *r)
{
	r->read[0].state = READ_DONE;
}

static void lose_a_user(struct reader *r)
{
	r->files.file[0].users++;
}

static void lose_an_entry(struct reader *r)
{
	r->shares.share[0].files++;
}

static void lose_memory(struct reader *r)
{
	r->indexes_bytes++;
}

static void lose_a_slow_share(struct reader *r)
{
	r->shares.slow++;
}

static void move_wrongly(struct reader *r)
{
	read_move(&r->read[0], READ_ENDED); /* from FREE, without a read */
}

/* The check at every tick ends the process, whichever invariant a bug breaks. */
static void broken_invariants_abort(void **state)
{
	void (*const breaks[])(struct reader *) = {NULL, lose_a_read, lose_a_state, lose_a_user,
		lose_an_entry, lose_memory, lose_a_slow_share, move_wrongly};
	struct shelf *shelf = shelf_new(2, 3000);
	const struct mode *mode = *state;

	skip_without_uring(mode);
	for (unsigned i = 0; i < COUNT(breaks); i++) {
		int status;
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			struct checker checker;

			signal(SIGABRT, SIG_DFL);
			if (!freopen("/dev/null", "w", stderr)) /* the text of the assertion */
				_exit(1);
			checker_open(&checker, mode, 4);
			assert_reads(&checker, shelf, 0);
			if (breaks[i])
				breaks[i](checker.reader);
			reader_check(checker.reader);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (breaks[i])
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
		else
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	shelf_free(shelf);
}

static const struct test_case cases[] = {
	CASE(falls_back_to_pread_if_io_uring_is_forbidden),
	CASE(few_descriptors_are_enough),
	CASE(few_descriptors_are_enough_for_indexes),
	CASE(broken_invariants_abort),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
