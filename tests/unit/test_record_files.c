/* Record files: torn ends, other files, full disks, killed writers. */
#include "tests/unit/recordings.h"

/* ---- existing files ---- */

static void torn_ends_are_cut_off(void **state)
{
	struct tokend t = handle(0, 1, 0);
	char bytes[(5 + MICRO) * RECORD_ENTRY_BYTES];

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	recording_end(&t, true);
	load();
	memcpy(bytes, entry, sizeof(bytes));
	for (size_t n = 0; n < sizeof(bytes); n++) {
		/* Complete rows after a complete beginning stay; a torn beginning is cut off. */
		size_t stays = n < 5 * 16 ? 0 : n / 16;

		put_file(bytes, n);
		t = handle(0, 1, 1000);
		assert_int_equal(tokend_record(&t, path), 0);
		assert_int_equal(take(&t, MICRO), 0);
		recording_end(&t, true);
		assert_int_equal(load(), stays + 5 + MICRO);
		assert_int_equal(begin_at(stays).position, 1000);
	}
	/* The same after a complete record. */
	for (size_t n = 1; n < 5 * 16; n++) {
		char longer[sizeof(bytes) + sizeof(bytes)];

		memcpy(longer, bytes, sizeof(bytes));
		memcpy(longer + sizeof(bytes), bytes, n);
		put_file(longer, sizeof(bytes) + n);
		t = handle(0, 1, 1000);
		assert_int_equal(tokend_record(&t, path), 0);
		recording_end(&t, true);
		assert_int_equal(load(), 5 + MICRO);
		assert_rows(5, 0, MICRO);
	}
}

static void rejected_and_unchanged(const char *name, const char *word)
{
	struct tokend t = handle(0, 1, 0);

	assert_int_equal(tokend_record(&t, name), TOKEND_EARGUMENT);
	assert_null(t.record);
	assert_non_null(strstr(tokend_why(&t), word));
	assert_null(strchr(tokend_why(&t), '\n'));
}

static void other_files_are_rejected(void **state)
{
	static const char *const texts[] = {"x", "no record of anything, but long", "tkdc"};
	const uint64_t newer[2] = {RECORD_BEGIN, RECORD_VERSION + 1};

	(void)state;
	for (int i = 0; i < 3; i++) {
		put_file(texts[i], strlen(texts[i]));
		rejected_and_unchanged(path, "is not a record");
		assert_int_equal(file_bytes(), strlen(texts[i]));
	}
	put_file(newer, sizeof(newer));
	rejected_and_unchanged(path, "is not a record of this version");
	assert_int_equal(file_bytes(), sizeof(newer));
	rejected_and_unchanged("/tmp", "directory");
	rejected_and_unchanged("/dev/full", "regular");
	rejected_and_unchanged("/nowhere/x.record", "No such file");
	rejected_and_unchanged("", "empty");
}

static void a_rejected_file_does_not_end_the_old_record(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(tokend_record(&t, "/nowhere/x.record"), TOKEND_EARGUMENT);
	assert_int_equal(take(&t, MICRO), 0);
	recording_end(&t, true);
	assert_int_equal(load(), 5 + MICRO);
	assert_rows(5, 0, MICRO);
}

/* ---- full disks ---- */

/* The disk is full at every byte of a batch in turn: nothing of the batch is taken or stays in the
 * file. Once there is room, all of it is recorded. */
static void nothing_is_taken_that_cannot_be_recorded(void **state)
{
	const size_t batch = MICRO * RECORD_ENTRY_BYTES;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	for (size_t room = 0; room < batch; room++) {
		struct tokend t = handle(0, 1, 0);

		put_file("", 0);
		assert_int_equal(tokend_record(&t, path), 0);
		assert_int_equal(take(&t, MICRO), 0);

		size_t whole = file_bytes();

		limit_files_to(whole + room);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(take(&t, MICRO), TOKEND_EARGUMENT);
			assert_non_null(strstr(tokend_why(&t), path));
			assert_non_null(strstr(tokend_why(&t), strerror(EFBIG)));
			assert_int_equal(t.taken, MICRO);
			assert_int_equal(file_bytes(), whole);
		}
		limit_files_to(RLIM_INFINITY);
		assert_int_equal(take(&t, MICRO), 0);
		assert_int_equal(tokend_record(&t, NULL), 0);
		assert_int_equal(load(), 5 + 2 * MICRO);
		assert_rows(5, 0, 2 * MICRO);
	}
}

/* Two moves that could not be written become one, from the file's last position to the current one.
 */
static void a_beginning_that_cannot_be_written_is_tried_again(void **state)
{
	struct tokend t = handle(0, 1, 0), late = handle(0, 1, 0);

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	limit_files_to(file_bytes() + 40);
	t.taken = 2000;
	assert_int_equal(recording_moved(&t), TOKEND_EARGUMENT);
	t.taken = 3000;
	assert_int_equal(recording_moved(&t), TOKEND_EARGUMENT);
	assert_int_equal(tokend_record(&late, path), 0);
	assert_int_equal(take(&late, MICRO), TOKEND_EARGUMENT);
	recording_end(&late, true);
	limit_files_to(RLIM_INFINITY);
	assert_int_equal(take(&t, MICRO), 0);
	recording_end(&t, true);
	assert_int_equal(load(), 5 + MICRO + 5 + MICRO);
	assert_move(9, 4, 3000);
	assert_rows(14, 3000, MICRO);
}

/* ---- processes that end ---- */

static void a_child_cannot_record(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	alive = 0; /* as after fork() */
	assert_int_equal(tokend_record(&t, NULL), TOKEND_EFORKED);

	struct tokend copy = t;
	int fd = dup(0);

	close(fd);
	t.taken = 50;
	recording_end(&copy, false); /* frees memory only */
	alive = 1;
	assert_int_equal(load(), 5 + MICRO);
	/* The lowest free descriptor is the same: none was closed. */
	int now = dup(0);

	assert_int_equal(now, fd);
	close(now);
}

/*
 * A writer killed at any moment leaves complete entries, and the next one appends to them. Batches
 * may be incomplete: on SIGKILL the kernel may end a write at a page.
 */
static void records_of_killed_writers_continue(void **state)
{
	struct rng random = {11};
	uint64_t at = 0;
	int written = 0;

	(void)state;
	for (int round = 0; round < 30; round++) {
		size_t before = file_bytes();
		pid_t child = fork();

		if (child == 0) {
			struct tokend t = handle(0, 1, at);

			if (tokend_record(&t, path) < 0)
				_exit(1);
			for (int i = 0; i < 4000; i++)
				if (take(&t, MICRO) < 0)
					_exit(1);
			pause();
		}

		/* Kill every fourth at once, the others after some bytes. */
		size_t enough = before + (round % 4 ? 1 + rng_below(&random, 100000) : 0);

		assert_true(child > 0);
		while (file_bytes() < enough && waitpid(child, NULL, WNOHANG) == 0)
			sched_yield();
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);

		/* Rows are consecutive, and each beginning is at the end of the last row. */
		size_t n = load();
		uint64_t expect = 0;

		assert_int_equal(file_bytes(), n * RECORD_ENTRY_BYTES);
		for (size_t i = 0; i < n; i++) {
			if (entry[i][0] == RECORD_BEGIN && i + RECORD_WORDS >= n)
				break; /* torn; the next writer cuts it off */
			if (entry[i][0] == RECORD_BEGIN) {
				assert_int_equal(begin_at(i).position, expect);
				i += RECORD_WORDS;
				continue;
			}
			assert_rows(i, expect++, 1);
		}
		written += expect > at;
		at = expect;
	}
	assert_true(written >= 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(torn_ends_are_cut_off, setup, teardown),
		cmocka_unit_test_setup_teardown(other_files_are_rejected, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_rejected_file_does_not_end_the_old_record, setup, teardown),
		cmocka_unit_test_setup_teardown(
			nothing_is_taken_that_cannot_be_recorded, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_beginning_that_cannot_be_written_is_tried_again, setup, teardown),
		cmocka_unit_test_setup_teardown(a_child_cannot_record, setup, teardown),
		cmocka_unit_test_setup_teardown(
			records_of_killed_writers_continue, setup, teardown),
	};

	return cmocka_run_group_tests_name("record files", tests, NULL, NULL);
}
