/*
 * The cache of pieces on a real directory: killed at any moment, flipped bits, lost data, a full
 * disk, removed files, a smaller size, and two daemons. It never returns a wrong byte, and never
 * takes more space than it may.
 */
#include "daemon/store/cache_index.h"
#include "tests/unit/cached.h"
#include "tests/unit/skip.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct store_cache_status state_of(struct store_cache *cache)
{
	struct store_cache_status status;

	store_cache_state(cache, &status);
	return status;
}

/* Reads and writes at random, as long as it may. */
static void churn(struct store_cache *cache, unsigned steps)
{
	while (steps-- > 0) {
		unsigned i = (unsigned)rng_below(&rng, OBJECTS);
		uint64_t at = rng_below(&rng, object_bytes), n = 1 + rng_below(&rng, PIECE);

		n = n < object_bytes - at ? n : object_bytes - at;
		if (!get(cache, i, at, n))
			for (uint64_t p = at / PIECE; p <= (at + n - 1) / PIECE; p++)
				if (!get_piece(cache, i, p))
					put(cache, i, p, UINT64_MAX);
	}
}

/* Which pieces are readable, a bit for each. */
static uint64_t readable(struct store_cache *cache)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < OBJECTS; i++)
		for (uint64_t p = 0; p < PIECES; p++)
			bits |= (uint64_t)get_piece(cache, i, p) << (i * PIECES + p);
	return bits;
}

/* A piece that never came whole is absent, and takes no space. */
static void put_half(struct store_cache *cache)
{
	static const char other_key[] = "half";
	struct object object = object_of(0);
	uint64_t used = state_of(cache).used_bytes, piece;
	int fd;

	object.key = other_key;
	for (int keep = 0; keep < 2; keep++) {
		struct cache_write *w = store_cache_write(cache, &place, &object, 1, UINT64_MAX);

		assert_non_null(w);
		assert_true(store_cache_append(w, other_key, sizeof(other_key)));
		assert_false(store_cache_end(w, keep));
		assert_int_equal(store_cache_pin(cache, &place, &object, PIECE, 1, &fd, &piece),
			CACHE_ABSENT);
		assert_int_equal(state_of(cache).used_bytes, used);
	}
}

static void test_pieces_are_kept_over_a_restart(void **state)
{
	struct store_cache *cache = open_cache(ROOM * PIECE);
	uint64_t all = (UINT64_C(1) << OBJECTS * PIECES) - 1, used;

	(void)state;
	assert_int_equal(readable(cache), 0);
	for (unsigned i = 0; i < OBJECTS; i++)
		for (uint64_t p = 0; p < PIECES; p++)
			assert_true(put(cache, i, p, UINT64_MAX));
	assert_int_equal(readable(cache), all);
	assert_false(put(cache, 1, 1, UINT64_MAX)); /* it is there */
	put_half(cache);
	used = state_of(cache).used_bytes;
	assert_int_equal(used, used_on_disk());
	assert_int_equal(state_of(cache).misses, OBJECTS * PIECES + 3);
	assert_int_equal(state_of(cache).pinned, 0);
	store_cache_close(cache);

	cache = open_cache(ROOM * PIECE);
	assert_int_equal(state_of(cache).used_bytes, used);
	assert_int_equal(readable(cache), all);
	assert_int_equal(state_of(cache).mismatches, 0);

	/* Another ETag, size or piece is another object. */
	struct object other = object_of(0);
	uint64_t piece;
	int fd;

	other.etag = "e2";
	assert_int_equal(store_cache_pin(cache, &place, &other, 0, 1, &fd, &piece), CACHE_ABSENT);
	other = object_of(0);
	other.size--;
	assert_int_equal(store_cache_pin(cache, &place, &other, 0, 1, &fd, &piece), CACHE_ABSENT);
	other = object_of(0);
	other.piece *= 2;
	assert_int_equal(store_cache_pin(cache, &place, &other, 0, 1, &fd, &piece), CACHE_ABSENT);
	assert_int_equal(store_cache_drop(cache, "s3://corpus/web/", 2), 2);
	assert_int_equal(store_cache_drop(cache, "s3://corpus/web/", UINT64_MAX), 3 * PIECES - 2);
	assert_int_equal(readable(cache), all & ~((UINT64_C(1) << 3 * PIECES) - 1));
	assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	store_cache_close(cache);
}

static void test_the_space_is_bounded(void **state)
{
	struct store_cache *cache = open_cache(ROOM * PIECE / 8);

	(void)state;
	for (int i = 0; i < 20; i++) {
		churn(cache, 20);
		assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 8);
		assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	}
	assert_true(state_of(cache).evictions > 0);
	assert_int_equal(state_of(cache).pinned, 0);
	store_cache_close(cache);

	/* A smaller size holds at the next start. */
	cache = open_cache(ROOM * PIECE / 16);
	assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 16);
	assert_true(state_of(cache).used_bytes >= ROOM * PIECE / 32);
	assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	churn(cache, 100);
	store_cache_close(cache);
}

/* Every piece is needed at its number; those of "x" never. */
static uint64_t needed_at(
	const void *context, const char *url, const char *etag, uint64_t at, uint64_t n, bool exact)
{
	uint64_t *exact_calls = (uint64_t *)context;

	assert_int_equal(n, bytes_of(at / PIECE));
	*exact_calls += exact;
	for (unsigned i = 0; i < OBJECTS; i++)
		if (strcmp(url + strlen("s3://corpus/"), keys[i]) == 0) {
			assert_string_equal(etag, i == 5 ? "" : "e1");
			return i == 5 ? UINT64_MAX : 100 + i * PIECES + at / PIECE;
		}
	fail_msg("%s", url);
	return 0;
}

static void test_what_is_needed_last_is_evicted(void **state)
{
	/* Files of sums, and 8 pieces: of so few, all are drawn. */
	struct store_cache *cache = open_cache((uint64_t)8 * PIECE + 8 * CACHE_BLOCK);
	uint64_t exact = 0;

	(void)state;
	store_cache_needs(cache, needed_at, &exact);
	for (uint64_t p = 0; p < 4; p++) {
		assert_true(put(cache, 0, p, UINT64_MAX));
		assert_true(put(cache, 3, p, UINT64_MAX)); /* needed at 115 + p */
	}
	assert_false(put(cache, 4, 0, 120)); /* a hint, later than all others */
	assert_int_equal(state_of(cache).evictions, 0);
	assert_true(put(cache, 1, 0, 105)); /* a hint: instead of piece 3 of object 3, at 118 */
	assert_int_equal(state_of(cache).evictions, 1);
	assert_false(get_piece(cache, 3, 3));
	assert_true(put(cache, 5, 0, UINT64_MAX)); /* never needed, but somebody waits */
	assert_false(get_piece(cache, 3, 2));
	assert_true(put(cache, 2, 0, 110));
	assert_false(get_piece(cache, 5, 0));
	assert_true(exact >= 3);

	/* Pinned pieces stay, whoever waits. */
	int fd[4];

	assert_true(pin(cache, 0, 0, (uint64_t)4 * PIECE, &fd[0]));
	assert_true(pin(cache, 3, 0, (uint64_t)2 * PIECE, &fd[1]));
	assert_true(pin(cache, 1, 0, 1, &fd[2]));
	assert_true(put(cache, 4, 1, UINT64_MAX)); /* instead of piece 0 of object 2 */
	assert_false(get_piece(cache, 2, 0));
	assert_true(pin(cache, 4, PIECE + 5, 1, &fd[3]));
	assert_false(put(cache, 4, 2, UINT64_MAX));
	assert_int_equal(state_of(cache).pinned, 8);
	store_cache_unpin(cache, fd[0], 0, (uint64_t)4 * PIECE);
	store_cache_unpin(cache, fd[1], 0, (uint64_t)2 * PIECE);
	store_cache_unpin(cache, fd[2], 0, 1);
	store_cache_unpin(cache, fd[3], PIECE + 5, 1);
	assert_true(put(cache, 4, 2, UINT64_MAX));
	assert_true(state_of(cache).used_bytes <= (uint64_t)8 * PIECE + 8 * CACHE_BLOCK);
	store_cache_close(cache);
}

/* A process that is killed at any moment leaves whole pieces or none. */
static void test_killed_at_any_moment(void **state)
{
	unsigned kills = 0;

	(void)state;
	for (int round = 0; round < 15; round++) {
		pid_t child;

		rng_next(&rng);
		child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			struct store_cache *own = open_cache(ROOM * PIECE / 6);

			for (;;)
				churn(own, 1000);
		}
		usleep((useconds_t)rng_below(&rng, 15000));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		kills++;

		struct store_cache *cache = open_cache(ROOM * PIECE / 6);

		readable(cache); /* asserts their bytes */
		assert_int_equal(state_of(cache).mismatches, 0);
		assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 6);
		assert_int_equal(state_of(cache).used_bytes, used_on_disk());
		store_cache_close(cache);
	}
	assert_int_equal(kills, 15);
}

/* Damages a random file. @kind: what happens to it. */
static bool damage(unsigned kind, unsigned i)
{
	struct object object = object_of(i);
	struct cache_head head;
	struct cache_hash hash;
	char name[CACHE_NAME_BYTES], path[400], zeros[3000] = {0};
	uint8_t byte;

	cache_head_of(&place, &object, &head, &hash);
	cache_name(&hash, kind % 2 ? ".sums" : ".data", name);
	snprintf(path, sizeof(path), "%s/%s", root, name);

	int fd = open(path, O_RDWR);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0)
		return false;
	uint64_t at = rng_below(&rng, (uint64_t)st.st_size);

	switch (kind) {
	case 0: /* a flipped bit */
	case 1:
		assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= (uint8_t)(1u << rng_below(&rng, 8));
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
		break;
	case 2: /* a power cut: blocks that were not written yet */
	case 3:
		if (kind == 3)
			at += CACHE_HEAD_BYTES;
		assert_true(pwrite(fd, zeros, sizeof(zeros), (off_t)at) > 0);
		assert_int_equal(ftruncate(fd, st.st_size), 0);
		break;
	case 4: /* a file that lost its end */
	case 5:
		assert_int_equal(ftruncate(fd, (off_t)at), 0);
		break;
	case 6: /* or its beginning, or itself */
	case 7:
		unlink(path);
	}
	close(fd);
	return true;
}

static void test_damaged_files_give_no_wrong_byte(void **state)
{
	unsigned done[8] = {0}, mismatches = 0;

	(void)state;
	for (unsigned round = 0; round < 80; round++) {
		struct store_cache *cache = open_cache(ROOM * PIECE / 2);
		unsigned kind = round % 8;

		churn(cache, 10);
		if (round % 3) { /* damaged while it is in use: files that are not open yet */
			store_cache_close(cache);
			done[kind] += damage(kind, (unsigned)rng_below(&rng, OBJECTS));
			cache = open_cache(ROOM * PIECE / 2);
		} else if (kind >= 6) {
			damage(kind, (unsigned)rng_below(&rng, OBJECTS));
		}
		readable(cache);
		churn(cache, 5);
		assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 2);
		mismatches += (unsigned)state_of(cache).mismatches;
		store_cache_close(cache);
	}
	for (unsigned kind = 0; kind < 8; kind++)
		assert_true(done[kind] > 1);
	assert_true(mismatches > 8);
}

/* ---- a full disk ---- */

static unsigned logged;

static void log_line_of(void *context, const char *line)
{
	(void)context;
	assert_non_null(strstr(line, "cache "));
	logged++;
}

static void test_a_full_disk_is_left_alone(void **state)
{
	struct fault fault;
	struct store_cache *cache;
	unsigned written = 0;

	(void)state;
	mkdir(root, 0700);
	if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
		mount("none", root, "tmpfs", 0, "size=640k,mode=700") != 0)
		skip_because("no tmpfs can be mounted here");
	logged = 0;
	cache = store_cache_open(
		&(struct store_cache_options){
			.dir = root, .size = ROOM * PIECE, .files = 3, .log = log_line_of},
		&fault);
	assert_non_null(cache);
	store_cache_scan(cache);
	for (unsigned i = 0; i < OBJECTS; i++)
		for (uint64_t p = 0; p < PIECES; p++)
			written += put(cache, i, p, UINT64_MAX);
	assert_true(written >= 5 && written < 20);
	assert_int_equal(__builtin_popcountll(readable(cache)), written);
	assert_int_equal(logged, 1);
	assert_true(state_of(cache).failing_s > 0);
	assert_non_null(strstr(state_of(cache).last, "No space left"));
	assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	store_cache_close(cache);
	cache = open_cache(ROOM * PIECE);
	assert_int_equal(__builtin_popcountll(readable(cache)), written);
	store_cache_close(cache);
	umount2(root, MNT_DETACH);
}

/* Somebody removes the directory under the daemon. */
static void test_a_removed_directory(void **state)
{
	struct store_cache *cache = open_cache(ROOM * PIECE);
	uint64_t before, after;

	(void)state;
	churn(cache, 40);
	before = readable(cache);
	clear();
	after = readable(cache);
	assert_int_equal(after & ~before, 0);
	churn(cache, 20);
	assert_true(state_of(cache).failing_s > 0);
	store_cache_close(cache);
	cache = open_cache(ROOM * PIECE);
	assert_int_equal(readable(cache), 0);
	churn(cache, 20);
	assert_int_not_equal(readable(cache), 0);
	store_cache_close(cache);
}

static int remove_below(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st, (void)kind;
	return ftw->level > 0 ? remove(path) : 0;
}

/* Somebody removes the files. A read finds that, and what is fetched again is kept. */
static void test_removed_files(void **state)
{
	struct store_cache *cache = open_cache(ROOM * PIECE);

	(void)state;
	churn(cache, 4000); /* all pieces, most likely */
	store_cache_close(cache);
	cache = open_cache(ROOM * PIECE);
	nftw(root, remove_below, 8, FTW_PHYS | FTW_DEPTH);
	assert_int_equal(readable(cache), 0);
	for (unsigned i = 0; i < OBJECTS; i++)
		for (uint64_t p = 0; p < PIECES; p++)
			assert_true(put(cache, i, p, UINT64_MAX));
	assert_int_equal(state_of(cache).failing_s, 0);
	assert_int_equal(__builtin_popcountll(readable(cache)), OBJECTS * PIECES);
	store_cache_close(cache);
}

/* ---- threads ---- */

struct crowd {
	struct store_cache *cache;
	uint64_t seed;
	_Atomic bool *stop;
	unsigned reads;
};

static void *read_all_the_time(void *argument)
{
	struct crowd *c = argument;
	struct rng own = {c->seed};
	uint8_t found[512], right[512];

	while (!*c->stop) {
		unsigned i = (unsigned)rng_below(&own, OBJECTS);
		struct object object = object_of(i);
		uint64_t n = sizeof(found), at = rng_below(&own, object_bytes - n), piece;
		int fd;

		switch (store_cache_pin(c->cache, &place, &object, at, n, &fd, &piece)) {
		case CACHE_PINNED:
			sched_yield();
			if (pread(fd, found, n, (off_t)at) != (ssize_t)n)
				abort();
			store_cache_unpin(c->cache, fd, at, n);
			fill(right, i, at, n);
			if (memcmp(found, right, n) != 0)
				abort();
			c->reads++;
			break;
		case CACHE_UNVERIFIED:
			store_cache_verify(c->cache, &place, &object, piece, 0);
			break;
		case CACHE_ABSENT:
			sched_yield();
		}
	}
	return NULL;
}

static void test_evicted_while_others_read(void **state)
{
	enum { THREADS = 3 };

	struct store_cache *cache = open_cache(ROOM * PIECE / 6);
	_Atomic bool stop = false;
	struct crowd crowd[THREADS];
	pthread_t thread[THREADS];

	(void)state;
	churn(cache, 20);
	store_cache_close(cache); /* so that pieces are verified by several threads */
	cache = open_cache(ROOM * PIECE / 6);
	for (unsigned i = 0; i < THREADS; i++) {
		crowd[i] = (struct crowd){cache, rng_next(&rng) | 1, &stop, 0};
		pthread_create(&thread[i], NULL, read_all_the_time, &crowd[i]);
	}
	churn(cache, 600);
	store_cache_drop(cache, "s3://corpus/code/", UINT64_MAX);
	stop = true;
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		assert_true(crowd[i].reads > 0);
	}
	assert_int_equal(state_of(cache).pinned, 0);
	assert_int_equal(state_of(cache).mismatches, 0);
	assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	store_cache_close(cache);
}

/* ---- the directory ---- */

static void assert_unsuitable(const char *dir, uint64_t size, const char *text)
{
	struct fault fault = {0};

	assert_false(store_cache_suits(dir, size, &fault));
	if (!strstr(fault.text, text))
		fail_msg("%s", fault.text);
}

static void test_unsuitable_directories(void **state)
{
	struct store_cache_options options = {.dir = root, .size = ROOM * PIECE, .files = 3};
	struct store_cache *cache = open_cache(ROOM * PIECE);
	char path[300], text[64];
	struct fault fault = {0};

	(void)state;
	snprintf(text, sizeof(text), "the daemon with pid %d uses it", (int)getpid());
	assert_null(store_cache_open(&options, &fault));
	assert_non_null(strstr(fault.text, text));
	assert_true(store_cache_suits(root, ROOM * PIECE, &fault)); /* a check may run next to it */
	store_cache_close(cache);
	assert_unsuitable(root, 1000, "fewer than 64 pieces");
	snprintf(path, sizeof(path), "%s/lock/x", root);
	assert_unsuitable(path, ROOM * PIECE, "cannot be created");
	snprintf(path, sizeof(path), "%s/lock", root);
	assert_unsuitable(path, ROOM * PIECE, "cannot be opened");
	chmod(root, 0777);
	assert_unsuitable(root, ROOM * PIECE, "other users may write to it (mode 777)");
	chmod(root, 0700);
	if (geteuid() == 0 && chown(root, 12345, 12345) == 0) {
		assert_unsuitable(root, ROOM * PIECE, "belongs to user 12345");
		assert_int_equal(chown(root, 0, 0), 0);
	}
	assert_unsuitable("/proc/self", ROOM * PIECE, "/proc/self: ");
}

/* 20 TB in 10^5 objects, in pieces of 8 MiB. */
static void test_the_index_is_small(void **state)
{
	struct cache_index index = {0};
	struct cache_hash hash = {{0}};
	uint64_t size = 200000000, piece = 8 << 20;

	(void)state;
	for (uint64_t i = 0; i < 100000; i++) {
		uint64_t number = order_mix64(i + 1);

		memcpy(hash.byte, &number, sizeof(number));
		hash.byte[0] = (uint8_t)(i / 391); /* directory by directory, as the scan does */
		struct cache_entry *e = cache_index_add(&index, &hash, size, piece);

		assert_non_null(e);
		for (uint64_t p = 0; p < cache_pieces(size, piece); p++)
			cache_entry_set(&index, e, p, CACHE_PIECE_PRESENT);
	}
	assert_int_equal(index.present, 100000 * cache_pieces(size, piece));
	assert_true(index.room * sizeof(*index.entry) + index.bits_bytes < 4000000);
	print_message("index of 10^5 objects, 20 TB: %.1f MB\n",
		(double)(index.room * sizeof(*index.entry) + index.bits_bytes) / 1e6);
	cache_index_free(&index);
}

static int begin(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	snprintf(root, sizeof(root), "%s/cache", tmp ? tmp : "/tmp");
	clear();
	return 0;
}

/* In memory if this user may mount that: a disk takes its time to free blocks that are not written
 * yet. */
static int begin_fast(void **state)
{
	begin(state);
	mkdir(root, 0700);
	if (unshare(CLONE_NEWNS) == 0 && mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		mount("none", root, "tmpfs", 0, "size=32m,mode=700");
	return 0;
}

static int end(void **state)
{
	(void)state;
	umount2(root, MNT_DETACH);
	clear();
	return 0;
}

int main(void)
{
	const char *seed = getenv("TOKEND_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_pieces_are_kept_over_a_restart, begin, end),
		cmocka_unit_test_setup_teardown(test_the_space_is_bounded, begin, end),
		cmocka_unit_test_setup_teardown(test_what_is_needed_last_is_evicted, begin, end),
		cmocka_unit_test_setup_teardown(test_killed_at_any_moment, begin_fast, end),
		cmocka_unit_test_setup_teardown(
			test_damaged_files_give_no_wrong_byte, begin_fast, end),
		cmocka_unit_test_setup_teardown(test_evicted_while_others_read, begin_fast, end),
		cmocka_unit_test_setup_teardown(test_a_removed_directory, begin, end),
		cmocka_unit_test_setup_teardown(test_removed_files, begin, end),
		cmocka_unit_test_setup_teardown(test_unsuitable_directories, begin, end),
		cmocka_unit_test(test_the_index_is_small),
		cmocka_unit_test_setup_teardown(test_a_full_disk_is_left_alone, begin, end),
	};

	rng.state = (seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u) | 1;
	print_message("seed %llu\n", (unsigned long long)rng.state);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
