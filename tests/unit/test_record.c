/* Records: the checksum of the format, and when a session writes what. */
#include "tests/unit/recordings.h"

/* ---- the checksum ---- */

/* The checksum as record.h describes it, byte by byte. */
static uint64_t described(uint64_t position, const uint8_t *bytes, size_t n)
{
	uint64_t lane[4] = {0};

	for (size_t w = 0; w < (n + 31) / 32 * 4; w++) {
		uint64_t word = 0;

		for (size_t i = 0; i < 8 && 8 * w + i < n; i++)
			word |= (uint64_t)bytes[8 * w + i] << 8 * i;
		lane[w % 4] = (lane[w % 4] ^ word) * UINT64_C(0xBF58476D1CE4E5B9);
		lane[w % 4] ^= lane[w % 4] >> 32;
	}
	return order_derive(position, n, lane[0], lane[1], lane[2], lane[3]);
}

static void checksum_is_as_described(void **state)
{
	struct rng random = {5};
	uint8_t bytes[300];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)rng_next(&random);
	for (size_t n = 0; n < 200; n++)
		for (size_t at = 0; at < 9; at++)
			assert_true(record_checksum(n * 1000, bytes + at, n) ==
				    described(n * 1000, bytes + at, n));
	/* These values must never change: files of old runs are read. */
	for (int i = 0; i < 10; i++)
		bytes[i] = (uint8_t)i;
	assert_true(record_checksum(7, bytes, 10) == UINT64_C(0x45ecf753b4b246c2));
}

static void checksum_depends_on_every_bit_length_and_position(void **state)
{
	uint8_t bytes[2 * WINDOW] = {0};
	uint64_t plain = record_checksum(9, bytes, sizeof(bytes));

	(void)state;
	for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(record_checksum(9, bytes, sizeof(bytes)) != plain);
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_true(record_checksum(9, bytes, sizeof(bytes) - 2) != plain);
	assert_true(record_checksum(10, bytes, sizeof(bytes)) != plain);
}

static void identity_depends_on_the_stream_only(void **state)
{
	struct cursor c = handle(0, 1, 0).origin, other;
	uint64_t plain = record_identity(&c);

	(void)state;
	other = c;
	other.next = 4096;
	assert_true(record_identity(&other) == plain);
	other.seed++;
	assert_true(record_identity(&other) != plain);
	other = c;
	other.stream[0] = 'b';
	assert_true(record_identity(&other) != plain);
	other = c;
	other.stride = 16;
	assert_true(record_identity(&other) != plain);
}

/* ---- entries ---- */

static void a_record_is_a_beginning_then_rows(void **state)
{
	struct tokend t = handle(1, 2, 1000);
	struct timespec now;

	(void)state;
	clock_gettime(CLOCK_REALTIME, &now);
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(load(), 0); /* nothing is taken yet */
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(take(&t, 2), 0); /* the end of a finite stream: no padding */
	assert_int_equal(tokend_record(&t, NULL), 0);
	assert_null(t.record);
	assert_int_equal(load(), 1 + RECORD_WORDS + MICRO + 2);

	struct record_begin b = begin_at(0);

	assert_int_equal(b.position, 1000);
	assert_int_equal(b.left, 1000);
	assert_int_equal(b.rank, 1);
	assert_int_equal(b.world, 2);
	assert_int_equal(b.micro_batch, MICRO);
	assert_int_equal(b.peer, 3);
	assert_true(b.identity == record_identity(&t.origin));
	assert_true(b.time_ns / 1000000000 - (uint64_t)now.tv_sec < 60);
	assert_rows(5, 1004, MICRO);
	assert_rows(9, 1012, 2);
	assert_int_equal(tokend_record(&t, NULL), 0); /* no record: no error */
}

static void go(struct tokend *t, uint64_t position)
{
	t->taken = position;
	assert_int_equal(recording_moved(t), 0);
}

static void skip_on(struct tokend *t, uint64_t samples)
{
	t->taken += samples;
	assert_int_equal(recording_skipped(t), 0);
}

static void a_session_without_rows_writes_nothing(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	go(&t, 80);
	go(&t, 40);
	skip_on(&t, 40);
	t.world = 2;
	go(&t, 100);
	recording_end(&t, true);
	assert_int_equal(load(), 0);
}

/* The record begins at the first row. Of the moves before it only a requested skip is written. */
static void moves_before_the_first_row_are_merged(void **state)
{
	static const struct {
		uint64_t seek, skip, then, left, position;
	} cases[] = {
		{80, 0, 80, 80, 80},	/* a checkpoint is loaded */
		{80, 0, 120, 120, 120}, /* another checkpoint */
		{80, 0, 40, 40, 40},
		{80, 40, 120, 80, 120},	 /* then an operator skips */
		{80, 40, 100, 100, 100}, /* before another checkpoint is loaded */
		{0, 40, 40, 0, 40},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tokend t = handle(0, 1, 0);

		put_file("", 0);
		assert_int_equal(tokend_record(&t, path), 0);
		if (cases[i].seek)
			go(&t, cases[i].seek);
		skip_on(&t, cases[i].skip);
		if (t.taken != cases[i].then)
			go(&t, cases[i].then);
		assert_int_equal(take(&t, MICRO), 0);
		recording_end(&t, true);
		assert_int_equal(load(), 5 + MICRO);
		assert_move(0, cases[i].left, cases[i].position);
	}
}

/* After rows, a move forwards is written at once; moves backwards are merged and written with the
 * next row. */
static void moves_after_rows_are_written_or_merged(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	go(&t, 100);
	go(&t, 40);
	assert_int_equal(load(), 5 + MICRO + 5);
	assert_move(9, 4, 100);
	go(&t, 100);
	assert_int_equal(take(&t, MICRO), 0); /* the moves cancel out */
	assert_int_equal(load(), 10 + 2 * MICRO);
	go(&t, 0);
	skip_on(&t, 8);
	assert_int_equal(load(), 10 + 2 * MICRO);
	assert_int_equal(take(&t, MICRO), 0); /* a move back and a skip: two moves */
	assert_int_equal(load(), 20 + 3 * MICRO);
	assert_move(18, 104, 0);
	assert_move(23, 0, 8);
	assert_rows(28, 8, MICRO);
	skip_on(&t, 8);
	assert_move(load() - 5, 12, 20);
	go(&t, 0);
	recording_end(&t, true); /* no row was taken there */
	assert_int_equal(load(), 25 + 3 * MICRO);
}

static void every_change_of_position_or_rank_writes_a_beginning(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(
		recording_moved(&t), 0); /* the same position, as after a change of the mix */
	assert_int_equal(load(), 5 + MICRO);

	go(&t, 100);
	assert_int_equal(load(), 10 + MICRO);
	assert_move(9, 4, 100);
	t.world = 2; /* a rescale, written with its first row */
	t.step *= 2;
	go(&t, 100);
	assert_int_equal(load(), 10 + MICRO);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(load(), 15 + 2 * MICRO);
	assert_int_equal(begin_at(14).world, 2);
	assert_move(14, 100, 100);
	t.taken = 8; /* detected when the next batch is taken */
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(load(), 20 + 3 * MICRO);
	assert_move(23, 108, 8);
	assert_rows(28, 8, MICRO);
	recording_end(&t, true);
}

static void records_are_appended_to_and_switched(void **state)
{
	struct tokend t = handle(0, 1, 0), again = handle(0, 1, 40);
	char other[220];

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(tokend_record(&t, path), 0); /* the same file again */
	assert_int_equal(take(&t, MICRO), 0);
	snprintf(other, sizeof(other), "%s.other", path);
	assert_int_equal(tokend_record(&t, other), 0);
	assert_int_equal(take(&t, MICRO), 0);
	recording_end(&t, true);
	assert_int_equal(unlink(other), 0);
	assert_int_equal(load(), 2 * (5 + MICRO));
	assert_rows(5, 0, MICRO);
	assert_rows(14, 4, MICRO);

	assert_int_equal(tokend_record(&again, path), 0);
	assert_int_equal(take(&again, MICRO), 0);
	recording_end(&again, true);
	assert_int_equal(load(), 3 * (5 + MICRO));
	assert_int_equal(begin_at(18).position, 40);
}

/* As before a drain. The first write fails, as on a full disk. */
static void a_skip_without_a_batch_after_it_is_written(void **state)
{
	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	for (int full = 0; full < 2; full++) {
		struct tokend t = handle(0, 1, 0);

		put_file("", 0);
		assert_int_equal(tokend_record(&t, path), 0);
		assert_int_equal(take(&t, MICRO), 0);
		if (full)
			limit_files_to(file_bytes());
		t.taken = 64;
		assert_int_equal(recording_skipped(&t), full ? TOKEND_EARGUMENT : 0);
		limit_files_to(RLIM_INFINITY);
		recording_end(&t, true);
		assert_int_equal(load(), 10 + MICRO);
		assert_move(9, 4, 64);
	}
}

static int commit(struct tokend *t, uint64_t next)
{
	int status = recording_commit(t, next);

	if (status == 0) {
		t->committing = true;
		t->committed = next;
	}
	return status;
}

/* Batches and skips are written in order when they are committed. */
static void committed_batches_are_written(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(commit(&t, 0), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(take(&t, MICRO), 0);
	skip_on(&t, 88);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(load(), 0);
	assert_int_equal(commit(&t, 4), 0);
	assert_int_equal(load(), 5 + MICRO);
	limit_files_to(file_bytes() + 40);
	assert_int_equal(commit(&t, 8), TOKEND_EARGUMENT);
	assert_non_null(strstr(tokend_why(&t), "nothing was committed"));
	assert_int_equal(load(), 5 + MICRO);
	limit_files_to(RLIM_INFINITY);
	assert_int_equal(commit(&t, 12), 0); /* commits the skip too */
	assert_int_equal(load(), 10 + 3 * MICRO);
	assert_move(load() - 5, 12, 100);
	assert_int_equal(commit(&t, 104), 0);
	assert_int_equal(load(), 10 + 4 * MICRO);
	assert_rows(10 + 3 * MICRO, 100, MICRO);
	assert_int_equal(take(&t, MICRO), 0);
	recording_drop(&t); /* a checkpoint is loaded: uncommitted batches are dropped */
	go(&t, 104);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(commit(&t, 108), 0);
	recording_end(&t, true);
	assert_int_equal(load(), 10 + 5 * MICRO);
	assert_rows(10 + 3 * MICRO, 100, 2 * MICRO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checksum_is_as_described),
		cmocka_unit_test(checksum_depends_on_every_bit_length_and_position),
		cmocka_unit_test(identity_depends_on_the_stream_only),
		cmocka_unit_test_setup_teardown(a_record_is_a_beginning_then_rows, setup, teardown),
		cmocka_unit_test_setup_teardown(
			every_change_of_position_or_rank_writes_a_beginning, setup, teardown),
		cmocka_unit_test_setup_teardown(
			records_are_appended_to_and_switched, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_session_without_rows_writes_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(
			moves_before_the_first_row_are_merged, setup, teardown),
		cmocka_unit_test_setup_teardown(
			moves_after_rows_are_written_or_merged, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_skip_without_a_batch_after_it_is_written, setup, teardown),
		cmocka_unit_test_setup_teardown(committed_batches_are_written, setup, teardown),
	};

	return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
