/* A reader with shards that are not, or no longer, the files that were listed. */
#include "tests/unit/shelf.h"

static void truncated_when_open(void **state)
{
	struct shelf *shelf = shelf_new(1, 50000);
	struct checker checker;
	struct reader_done done;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	assert_return_code(truncate(shelf_path(shelf, 0), DATA_AT + 9001), errno);
	done = read_once(&checker, shelf, 0, 4000, 501); /* one byte more than the file has */
	assert_fault(&done, FAULT_CHANGED, 0);
	done = read_once(&checker, shelf, 0, 40000, 500);
	assert_fault(&done, FAULT_CHANGED, 0);
	/* The rest of the file cannot be trusted either. */
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

/* Another file of the same size, moved there by rename: neither the open file nor a new one is
 * read. */
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
	assert_changed(&checker, shelf, 0, "it was removed or replaced");
	assert_reads(&checker, shelf, 1); /* takes the only entry */
	assert_changed(&checker, shelf, 0, "inode was ");
	assert_reads(&checker, shelf, 1);
	checker_close(&checker);
	shelf_free(shelf);
}

/* The open file still has a name, but not this one: the next look after a tick finds that. */
static void moved_away(void **state)
{
	struct shelf *shelf = shelf_new(1, 3000);
	struct checker checker;
	char aside[300], path[256];

	checker_open(&checker, *state, 1);
	assert_reads(&checker, shelf, 0);
	snprintf(aside, sizeof(aside), "%s/aside", shelf->root);
	snprintf(path, sizeof(path), "%s", shelf_path(shelf, 0));
	assert_return_code(rename(path, aside), errno);
	reader_tick(checker.reader);
	assert_changed(&checker, shelf, 0, "its name no longer leads to the file that is open");
	assert_changed(&checker, shelf, 0, "its name no longer leads to the file that is open");
	assert_return_code(rename(aside, path), errno);
	assert_reads(&checker, shelf, 0);
	reader_tick(checker.reader);
	assert_reads(&checker, shelf, 0);
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

/* The shard at @path was moved to @aside, and another file put in its place. */
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
	assert_reads(checker, shelf, 0); /* the failure was not cached */
	assert_reads(checker, shelf, 1); /* evicts it */
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

/* All reads that wait for an opening get its fault; reads of another shard are not affected. */
static void all_reads_that_wait_for_an_opening_get_its_fault(void **state)
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

static const struct test_case cases[] = {
	CASE(truncated_when_open),
	CASE(truncated_before_open),
	CASE(replaced_by_rename),
	CASE(moved_away),
	CASE(rewritten_in_place),
	CASE(missing_or_not_a_file),
	CASE(all_reads_that_wait_for_an_opening_get_its_fault),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
