/*
 * Records: the checksum, the bytes in the file, and a writer whose disk, limits and life end at any
 * moment. The handle here has no daemon: the writer asks it only where it is.
 */
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
static uint64_t entry[ENTRIES_MOST][2]; /* of the file, as load() found it */
static uint64_t alive = 1;

static int setup(void **state)
{
	const char *directory = getenv("TMPDIR");

	(void)state;
	snprintf(path, sizeof(path), "%s/record-XXXXXX", directory ? directory : "/tmp");
	close(mkstemp(path));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static void put_file(const void *bytes, size_t n)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static size_t file_bytes(void)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (size_t)st.st_size;
}

/* Whole entries of the file. */
static size_t load(void)
{
	FILE *file = fopen(path, "rb");

	assert_non_null(file);

	size_t n = fread(entry, sizeof(entry[0]), ENTRIES_MOST, file);

	fclose(file);
	return n;
}

static struct record_begin begin_at(size_t i)
{
	struct record_begin begin;

	assert_true(entry[i][0] == RECORD_BEGIN && entry[i][1] == RECORD_VERSION);
	memcpy(&begin, entry[i + 1], sizeof(begin));
	return begin;
}

/* ---- a handle, and batches for it ---- */

static struct tokend handle(uint64_t rank, uint64_t world, uint64_t taken)
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

/* What stands in a row: another thing at every position. */
static void fill(uint64_t position, uint16_t *tokens)
{
	for (int i = 0; i < WINDOW; i++)
		tokens[i] = (uint16_t)(position * 31 + (uint64_t)i * 7);
}

static uint64_t checksum_at(uint64_t position)
{
	uint16_t tokens[WINDOW];

	fill(position, tokens);
	return record_checksum(position, tokens, sizeof(tokens));
}

static int take(struct tokend *t, uint32_t valid)
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

static void assert_rows(size_t at, uint64_t first, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(entry[at + i][0], first + i);
		assert_true(entry[at + i][1] == checksum_at(first + i));
	}
}

/* ---- the checksum ---- */

/* As record.h describes it, byte by byte. */
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

static void checksum_is_the_described_one(void **state)
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
	/* For ever: files of old runs are read. */
	for (int i = 0; i < 10; i++)
		bytes[i] = (uint8_t)i;
	assert_true(record_checksum(7, bytes, 10) == UINT64_C(0x45ecf753b4b246c2));
}

static void checksum_sees_every_bit_the_length_and_the_position(void **state)
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

static void identity_is_of_what_a_stream_shares(void **state)
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

/* ---- what is written ---- */

static void limit_files_to(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes == RLIM_INFINITY || bytes > limit.rlim_max ? limit.rlim_max : bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_beginning_then_rows(void **state)
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
	assert_int_equal(tokend_record(&t, NULL), 0); /* there is none: fine */
}

static void assert_move(size_t at, uint64_t left, uint64_t position)
{
	assert_int_equal(begin_at(at).left, left);
	assert_int_equal(begin_at(at).position, position);
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

/* Who took nothing leaves nothing, wherever it went. */
static void no_row_no_mark(void **state)
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

/* Where the first row is taken the process began; only what was skipped by request is told before
 * it. */
static void moves_before_the_first_row(void **state)
{
	static const struct {
		uint64_t seek, skip, then, left, position;
	} cases[] = {
		{80, 0, 80, 80, 80},	/* a checkpoint is loaded */
		{80, 0, 120, 120, 120}, /* and another one */
		{80, 0, 40, 40, 40},
		{80, 40, 120, 80, 120},	 /* and an operator skips */
		{80, 40, 100, 100, 100}, /* before another one is loaded */
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

/* After rows: what goes forwards is written at once, what goes backwards with the next row, as
 * their sum. */
static void moves_after_rows(void **state)
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
	assert_int_equal(take(&t, MICRO), 0); /* as if it had not been back */
	assert_int_equal(load(), 10 + 2 * MICRO);
	go(&t, 0);
	skip_on(&t, 8);
	assert_int_equal(load(), 10 + 2 * MICRO);
	assert_int_equal(take(&t, MICRO), 0); /* back, and then a skip: two moves */
	assert_int_equal(load(), 20 + 3 * MICRO);
	assert_move(18, 104, 0);
	assert_move(23, 0, 8);
	assert_rows(28, 8, MICRO);
	skip_on(&t, 8);
	assert_move(load() - 5, 12, 20);
	go(&t, 0);
	recording_end(&t, true); /* nothing was taken there */
	assert_int_equal(load(), 25 + 3 * MICRO);
}

static void a_beginning_where_it_goes_elsewhere(void **state)
{
	struct tokend t = handle(0, 1, 0);

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(
		recording_moved(&t), 0); /* the same place: as after a mere change of the mix */
	assert_int_equal(load(), 5 + MICRO);

	go(&t, 100);
	assert_int_equal(load(), 10 + MICRO);
	assert_move(9, 4, 100);
	t.world = 2; /* a rescale: told with its first row */
	t.step *= 2;
	go(&t, 100);
	assert_int_equal(load(), 10 + MICRO);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(load(), 15 + 2 * MICRO);
	assert_int_equal(begin_at(14).world, 2);
	assert_move(14, 100, 100);
	t.taken = 8; /* found only when the next batch is taken */
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(load(), 20 + 3 * MICRO);
	assert_move(23, 108, 8);
	assert_rows(28, 8, MICRO);
	recording_end(&t, true);
}

static void appended_to_and_switched(void **state)
{
	struct tokend t = handle(0, 1, 0), again = handle(0, 1, 40);
	char other[220];

	(void)state;
	assert_int_equal(tokend_record(&t, path), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(tokend_record(&t, path), 0); /* the same file once more */
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

/* A skip that no batch followed is kept, also if the disk was full at first: a skip before a drain.
 */
static void the_last_skip_is_kept(void **state)
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

/* Batches, and skips between them, are written once they are committed, in the order they came in.
 */
static void committed_before_it_is_written(void **state)
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
	assert_int_equal(commit(&t, 12), 0); /* and with it the skip */
	assert_int_equal(load(), 10 + 3 * MICRO);
	assert_move(load() - 5, 12, 100);
	assert_int_equal(commit(&t, 104), 0);
	assert_int_equal(load(), 10 + 4 * MICRO);
	assert_rows(10 + 3 * MICRO, 100, MICRO);
	assert_int_equal(take(&t, MICRO), 0);
	recording_drop(&t); /* a checkpoint is loaded: what was committed is all that was */
	go(&t, 104);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(take(&t, MICRO), 0);
	assert_int_equal(commit(&t, 108), 0);
	recording_end(&t, true);
	assert_int_equal(load(), 10 + 5 * MICRO);
	assert_rows(10 + 3 * MICRO, 100, 2 * MICRO);
}

/* ---- files that are found ---- */

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
		/* Behind a whole beginning whole rows stay; of a torn one nothing does. */
		size_t stays = n < 5 * 16 ? 0 : n / 16;

		put_file(bytes, n);
		t = handle(0, 1, 1000);
		assert_int_equal(tokend_record(&t, path), 0);
		assert_int_equal(take(&t, MICRO), 0);
		recording_end(&t, true);
		assert_int_equal(load(), stays + 5 + MICRO);
		assert_int_equal(begin_at(stays).position, 1000);
	}
	/* The same behind a whole record. */
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

static void refused_and_left_alone(const char *name, const char *word)
{
	struct tokend t = handle(0, 1, 0);

	assert_int_equal(tokend_record(&t, name), TOKEND_EARGUMENT);
	assert_null(t.record);
	assert_non_null(strstr(tokend_why(&t), word));
	assert_null(strchr(tokend_why(&t), '\n'));
}

static void other_files_are_refused(void **state)
{
	static const char *const texts[] = {"x", "no record of anything, but long", "tkdc"};
	const uint64_t newer[2] = {RECORD_BEGIN, RECORD_VERSION + 1};

	(void)state;
	for (int i = 0; i < 3; i++) {
		put_file(texts[i], strlen(texts[i]));
		refused_and_left_alone(path, "is no record");
		assert_int_equal(file_bytes(), strlen(texts[i]));
	}
	put_file(newer, sizeof(newer));
	refused_and_left_alone(path, "is no record of this version");
	assert_int_equal(file_bytes(), sizeof(newer));
	refused_and_left_alone("/tmp", "directory");
	refused_and_left_alone("/dev/full", "regular");
	refused_and_left_alone("/nowhere/x.record", "No such file");
	refused_and_left_alone("", "empty");
}

/* What is refused leaves the record that there is. */
static void the_old_record_goes_on(void **state)
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

/* ---- disks that are full ---- */

/* The limit falls on every byte of a batch: nothing of it is taken or stays, and it all comes in
 * the end. */
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

/* Two moves that could not be written are one, from where the file stands to where we are. */
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
	alive = 0; /* as in a child */
	assert_int_equal(tokend_record(&t, NULL), TOKEND_EFORKED);

	struct tokend copy = t;
	int fd = dup(0);

	close(fd);
	t.taken = 50;
	recording_end(&copy, false); /* its memory, but neither descriptors nor the file */
	alive = 1;
	assert_int_equal(load(), 5 + MICRO);
	/* The lowest free descriptor is what it was: none was closed. */
	int now = dup(0);

	assert_int_equal(now, fd);
	close(now);
}

/*
 * Killed at any moment, a writer leaves whole entries (the kernel ends a write at a page then, so
 * not always whole batches); the next one goes on behind them.
 */
static void killed_writers(void **state)
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

		/* Every fourth at once, the others once they have written so much. */
		size_t enough = before + (round % 4 ? 1 + rng_below(&random, 100000) : 0);

		assert_true(child > 0);
		while (file_bytes() < enough && waitpid(child, NULL, WNOHANG) == 0)
			sched_yield();
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);

		/* Rows come one after the other, each beginning where the last row ended. */
		size_t n = load();
		uint64_t expect = 0;

		assert_int_equal(file_bytes(), n * RECORD_ENTRY_BYTES);
		for (size_t i = 0; i < n; i++) {
			if (entry[i][0] == RECORD_BEGIN && i + RECORD_WORDS >= n)
				break; /* torn: the next writer cuts it off */
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
		cmocka_unit_test(checksum_is_the_described_one),
		cmocka_unit_test(checksum_sees_every_bit_the_length_and_the_position),
		cmocka_unit_test(identity_is_of_what_a_stream_shares),
		cmocka_unit_test_setup_teardown(a_beginning_then_rows, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_beginning_where_it_goes_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(appended_to_and_switched, setup, teardown),
		cmocka_unit_test_setup_teardown(no_row_no_mark, setup, teardown),
		cmocka_unit_test_setup_teardown(moves_before_the_first_row, setup, teardown),
		cmocka_unit_test_setup_teardown(moves_after_rows, setup, teardown),
		cmocka_unit_test_setup_teardown(the_last_skip_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(committed_before_it_is_written, setup, teardown),
		cmocka_unit_test_setup_teardown(torn_ends_are_cut_off, setup, teardown),
		cmocka_unit_test_setup_teardown(other_files_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(the_old_record_goes_on, setup, teardown),
		cmocka_unit_test_setup_teardown(
			nothing_is_taken_that_cannot_be_recorded, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_beginning_that_cannot_be_written_is_tried_again, setup, teardown),
		cmocka_unit_test_setup_teardown(a_child_cannot_record, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_writers, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
