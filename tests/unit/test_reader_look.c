/*
 * Open shards that are written to: none of the new bytes may be returned. On a file system that
 * answers at once; test_reader_fuse.c has one that does not.
 */
#include "tests/unit/shelf.h"

#include <sys/stat.h>

enum { TOKENS = 50000 };

/* Inverts @n bytes at @at, in place, and sets the mtime back. */
static void overwrite(const struct shelf *shelf, off_t at, size_t n)
{
	char *bytes = malloc(n);
	int fd = open(shelf_path(shelf, 0), O_RDWR | O_CLOEXEC);
	struct stat st;

	assert_non_null(bytes);
	assert_return_code(fstat(fd, &st), errno);
	assert_int_equal(pread(fd, bytes, n, at), n);
	for (size_t i = 0; i < n; i++)
		bytes[i] = (char)~bytes[i];
	assert_int_equal(pwrite(fd, bytes, n, at), n);
	struct timespec times[] = {st.st_mtim, st.st_mtim};

	assert_return_code(futimens(fd, times), errno);
	close(fd);
	free(bytes);
}

static void an_overwritten_file_is_a_fault(void **state)
{
	struct shelf *shelf = shelf_new(2, TOKENS);
	struct checker checker;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	overwrite(shelf, DATA_AT, 2 * TOKENS);
	assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
	assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
	assert_reads(&checker, shelf, 1);
	overwrite(shelf, DATA_AT, 2 * TOKENS); /* the old bytes again */
	assert_reads(&checker, shelf, 0);
	checker_close(&checker);
	shelf_free(shelf);
}

/* A partial change is detected once samples cover the file. */
static void a_partly_overwritten_file_is_a_fault(void **state)
{
	for (unsigned part = 0; part < 8; part++) {
		struct shelf *shelf = shelf_new(1, TOKENS);
		struct checker checker;

		checker_open(&checker, *state, 4);
		for (unsigned i = 0; i < 20; i++)
			assert_reads(&checker, shelf, 0);
		overwrite(shelf, DATA_AT + part * TOKENS / 4, TOKENS / 4);
		assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
		checker_close(&checker);
		shelf_free(shelf);
	}
}

/* While reads are in flight: each has the old bytes, or a fault. */
static void reads_during_an_overwrite_are_right_or_faults(void **state)
{
	struct shelf *shelf = shelf_new(1, TOKENS);
	struct rng rng = {.state = 3};
	struct checker checker;
	struct reader_done done[DEPTH];
	unsigned changed = 0;

	checker_open(&checker, *state, 4);
	for (unsigned round = 0; round < 400; round++) {
		while (checker.in_flight < DEPTH)
			queue_random(&checker, shelf, &rng, 1000);
		reader_commit(checker.reader);
		if (round == 200)
			overwrite(shelf, DATA_AT, 2 * TOKENS);
		unsigned n = checker_reap(&checker, done, DEPTH, 10000);

		for (unsigned i = 0; i < n; i++) {
			changed += done[i].fault && done[i].fault->code == FAULT_CHANGED;
			if (!done[i].fault)
				assert_right_bytes(&checker, shelf, done[i].tag);
			assert_true(!done[i].fault || round >= 200);
		}
	}
	assert_true(changed > 100);
	checker_close(&checker);
	shelf_free(shelf);
}

static void a_file_that_is_written_again_is_a_fault(void **state)
{
	struct shelf *shelf = shelf_new(1, TOKENS);
	struct checker checker;
	struct stat st;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	assert_return_code(stat(shelf_path(shelf, 0), &st), errno);
	char *other = calloc(TOKENS, 2);

	write_file(shelf_path(shelf, 0), other, 2 * TOKENS); /* O_TRUNC, the same inode */
	assert_changed(&checker, shelf, 0, "mtime (ns) was ");
	struct timespec times[] = {st.st_mtim, st.st_mtim};

	assert_return_code(utimensat(AT_FDCWD, shelf_path(shelf, 0), times, 0), errno);
	assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
	free(other);
	checker_close(&checker);
	shelf_free(shelf);
}

static void assert_warned(struct checker *checker)
{
	char text[LIMIT_TEXT_BYTES];

	assert_true(reader_warning(checker->reader, text, sizeof(text)));
	assert_non_null(strstr(text, "000.bin: its ctime changed while it was open"));
	assert_null(strchr(text, '\n'));
	assert_false(reader_warning(checker->reader, text, sizeof(text)));
}

/* A change of the ctime alone is a warning, once each. */
static void a_touched_file_is_a_warning(void **state)
{
	struct shelf *shelf = shelf_new(1, TOKENS);
	struct checker checker;
	char other[80];

	snprintf(other, sizeof(other), "%s/link", shelf->root);
	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	assert_return_code(chmod(shelf_path(shelf, 0), 0600), errno);
	assert_reads(&checker, shelf, 0);
	assert_warned(&checker);
	assert_return_code(link(shelf_path(shelf, 0), other), errno);
	read_random(&checker, shelf, 200, 1000);
	assert_warned(&checker);
	assert_return_code(rename(other, shelf_path(shelf, 0)),
		errno); /* it is the same file, so nothing happens */
	assert_return_code(unlink(other), errno);
	assert_reads(&checker, shelf, 0);
	assert_warned(&checker);
	overwrite(shelf, DATA_AT, 2 * TOKENS);
	assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
	checker_close(&checker);
	shelf_free(shelf);
}

/* Before a first sample counts, no check is possible: the file is opened and read again. */
static void a_file_touched_before_its_first_look_is_read_again(void **state)
{
	struct shelf *shelf = shelf_new(1, TOKENS);
	struct checker checker;
	unsigned ok = 0;

	for (unsigned i = 0; i < 50; i++) {
		struct reader_done done;

		checker_open(&checker, *state, 4);
		checker_queue(&checker, shelf, 0, 0, 1000);
		reader_commit(checker.reader); /* opens it in the pool */
		assert_return_code(chmod(shelf_path(shelf, 0), 0600 + i % 2), errno);
		assert_int_equal(checker_reap(&checker, &done, 1, 10000), 1);
		ok += !done.fault;
		assert_right_bytes(&checker, shelf, done.tag);
		checker_close(&checker);
	}
	assert_int_equal(ok, 50);
	shelf_free(shelf);
}

/* Bytes that are read once and kept were read before the file changed. */
static void kept_bytes_were_read_before_a_change(void **state)
{
	struct shelf *shelf = shelf_new(1, TOKENS);
	struct fault fault;
	struct bytes *b;

	(void)state;
	assert_true(bytes_open_side(&(struct bytes){.fd = -1}, shelf_path(shelf, 0), &b, &fault));
	assert_non_null(b);
	assert_true(bytes_settled(b, &fault));
	overwrite(shelf, DATA_AT, 2);
	assert_false(bytes_settled(b, &fault));
	assert_int_equal(fault.error, ESTALE);
	assert_string_equal(fault.text, "one of its side files changed while it was being read");
	bytes_close(b);
	shelf_free(shelf);
}

static const struct test_case cases[] = {
	CASE(an_overwritten_file_is_a_fault),
	CASE(a_partly_overwritten_file_is_a_fault),
	CASE(reads_during_an_overwrite_are_right_or_faults),
	CASE(a_file_that_is_written_again_is_a_fault),
	CASE(a_touched_file_is_a_warning),
	CASE(a_file_touched_before_its_first_look_is_read_again),
	CASE(kept_bytes_were_read_before_a_change),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
