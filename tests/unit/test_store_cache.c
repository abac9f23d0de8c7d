/*
 * The cache of pieces on a real directory: killed at any moment, flipped bits, lost data, eviction
 * under readers. It never returns a wrong byte, and never takes more space than it may.
 */
#include "daemon/store/internal.h"
#include "tests/unit/rng.h"

#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIECE = 64 << 10, OBJECTS = 6, PIECES = 5, LAST = 1000, ROOM = 64 };

static const uint64_t object_bytes = (uint64_t)(PIECES - 1) * PIECE + LAST;
static char root[256];
static struct rng rng;

static const struct store_bucket bucket = {
	.place = {.name = "s3://corpus", .host = "127.0.0.1:9000", .base = "/corpus/"}};
static const struct store_options options;
static const char *const keys[OBJECTS] = {
	"web/a.bin", "web/b.bin", "web/c.bin", "code/a.bin", "code/ü b.bin", "x"};

static struct object object_of(unsigned i)
{
	return (struct object){.bucket = &bucket,
		.key = keys[i],
		.etag = i == 5 ? NULL : "e1",
		.size = object_bytes,
		.piece = PIECE};
}

/* The contents of an object. No two pieces are equal. */
static void fill(uint8_t *to, unsigned i, uint64_t at, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] = (uint8_t)((at + k) * 31 + ((at + k) >> 13) * 7 + i * 101 + 1);
}

static uint64_t bytes_of(uint64_t piece)
{
	return cache_piece_bytes(object_bytes, PIECE, piece);
}

/* Bytes that the directory takes on the disk. */
static uint64_t disk_bytes;

static int add_blocks(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path, (void)ftw;
	if (type == FTW_F)
		disk_bytes += (uint64_t)st->st_blocks * 512;
	return 0;
}

static uint64_t used_on_disk(void)
{
	disk_bytes = 0;
	nftw(root, add_blocks, 8, FTW_PHYS);
	return disk_bytes;
}

static struct store_cache_status state_of(struct store_cache *cache)
{
	struct stores stores = {.cache = cache};
	struct store_cache_status status;

	store_cache_status(&stores, &status);
	return status;
}

static struct store_cache *open_cache(uint64_t size)
{
	struct fault fault = {0};
	struct store_cache *cache = store_cache_open(root, size, &options, &fault);

	if (!cache)
		fail_msg("%s", fault.text);
	return cache;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void clear(void)
{
	nftw(root, remove_one, 8, FTW_PHYS | FTW_DEPTH);
}

static void put(struct store_cache *cache, unsigned i, uint64_t piece)
{
	static uint8_t body[PIECE];
	struct object object = object_of(i);

	fill(body, i, piece * PIECE, bytes_of(piece));
	store_cache_put(cache, &object, piece, body);
}

/* Reads a range of one piece. False: it is not in the cache. Its bytes are the object's. */
static bool get(struct store_cache *cache, unsigned i, uint64_t at, uint64_t n)
{
	static uint8_t found[PIECE], right[PIECE];
	struct object object = object_of(i);

	if (!store_cache_read(cache, &object, at, found, n))
		return false;
	fill(right, i, at, n);
	assert_memory_equal(found, right, n);
	return true;
}

static bool get_piece(struct store_cache *cache, unsigned i, uint64_t piece)
{
	return get(cache, i, piece * PIECE, bytes_of(piece));
}

/* Reads and writes at random, as long as it may. */
static void churn(struct store_cache *cache, unsigned steps)
{
	while (steps-- > 0) {
		unsigned i = (unsigned)rng_below(&rng, OBJECTS);
		uint64_t at = rng_below(&rng, object_bytes), left = PIECE - at % PIECE,
			 n = 1 + rng_below(&rng, PIECE);

		n = n < left ? n : left;
		n = n < object_bytes - at ? n : object_bytes - at;
		if (!get(cache, i, at, n))
			put(cache, i, at / PIECE);
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

/* A process that is killed at any moment leaves whole pieces or none. */
static void test_killed_at_any_moment(void **state)
{
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

		struct store_cache *cache = open_cache(ROOM * PIECE / 6);

		readable(cache); /* asserts their bytes */
		assert_int_equal(state_of(cache).mismatches, 0);
		assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 6);
		assert_int_equal(state_of(cache).used_bytes, used_on_disk());
		store_cache_close(cache);
	}
}

/* Chooses a random file of the cache. False: there is none with this @ending. */
static bool choose(const char *ending, char path[400])
{
	char pattern[420];
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/*%s", root, ending);
	if (glob(pattern, 0, NULL, &found) != 0)
		return false;
	snprintf(path, 400, "%s", found.gl_pathv[rng_below(&rng, found.gl_pathc)]);
	globfree(&found);
	return true;
}

enum { FLIPPED, ZEROS, CUT, LONGER, EMPTY, REMOVED, RENAMED, DAMAGES };

/* Damages a random file. @kind: what happens to it. */
static bool damage(unsigned kind)
{
	char zeros[3000] = {0}, victim[400], same[400];
	uint8_t byte;
	struct stat st;

	if (!choose("", victim))
		return false;
	int fd = open(victim, O_RDWR);

	if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0) /* 0: renamed, then damaged */
		return false;
	uint64_t at = rng_below(&rng, (uint64_t)st.st_size);

	switch (kind) {
	case FLIPPED:
		assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= (uint8_t)(1u << rng_below(&rng, 8));
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
		break;
	case ZEROS: /* a power cut: blocks that were not written yet */
		assert_true(pwrite(fd, zeros, sizeof(zeros), (off_t)at) > 0);
		assert_int_equal(ftruncate(fd, st.st_size), 0);
		break;
	case CUT:
		assert_int_equal(ftruncate(fd, (off_t)at), 0);
		break;
	case LONGER:
		assert_int_equal(ftruncate(fd, st.st_size + 1), 0);
		break;
	case EMPTY:
		assert_int_equal(ftruncate(fd, 0), 0);
		break;
	case REMOVED:
		unlink(victim);
		break;
	case RENAMED: /* to the same piece of any object */
		assert_true(choose(strrchr(victim, '.'), same));
		rename(victim, same);
	}
	close(fd);
	return true;
}

static void test_damaged_files_give_no_wrong_byte(void **state)
{
	unsigned done[DAMAGES] = {0}, mismatches = 0;

	(void)state;
	for (unsigned round = 0; round < 84; round++) {
		struct store_cache *cache = open_cache(ROOM * PIECE / 2);
		unsigned kind = round % DAMAGES;

		churn(cache, 10);
		done[kind] += damage(kind);
		if (round % 3) {
			store_cache_close(cache);
			cache = open_cache(ROOM * PIECE / 2);
		}
		readable(cache);
		churn(cache, 5);
		assert_true(state_of(cache).used_bytes <= ROOM * PIECE / 2);
		mismatches += (unsigned)state_of(cache).mismatches;
		store_cache_close(cache);
	}
	for (unsigned kind = 0; kind < DAMAGES; kind++)
		assert_true(done[kind] > 1);
	assert_true(mismatches > 8);
}

/* The piece that was not read for the longest time goes, also after a restart. */
static void test_the_least_recently_read_piece_is_removed(void **state)
{
	enum { FIT = 10 };

	char other[300];

	(void)state;
	for (unsigned restarts = 0; restarts < 2; restarts++) {
		clear();
		mkdir(root, 0700);
		snprintf(other, sizeof(other), "%s/a.bin", root);
		close(creat(other, 0600));
		struct store_cache *cache = open_cache((uint64_t)ROOM * CACHE_BLOCK * 4);

		for (unsigned n = 0; n < FIT; n++)
			put(cache, n / 4, n % 4);
		usleep(20000); /* times of files are as coarse as a tick */
		assert_true(get_piece(cache, 0, 0) && get_piece(cache, 1, 1));
		if (restarts) {
			store_cache_close(cache);
			cache = open_cache((uint64_t)ROOM * CACHE_BLOCK * 4);
		}
		for (unsigned n = 0; n < 12; n++)
			put(cache, 3 + n / 4, n % 4);
		assert_true(state_of(cache).evictions >= 6);
		assert_true(get_piece(cache, 0, 0) && get_piece(cache, 1, 1));
		assert_false(get_piece(cache, 0, 1));
		store_cache_close(cache);
	}
	assert_int_equal(access(other, F_OK), 0); /* somebody else's file */
}

/* ---- threads ---- */

struct crowd {
	struct store_cache *cache;
	uint64_t seed;
	_Atomic bool *stop;
	_Atomic unsigned reads;
};

static void *read_all_the_time(void *argument)
{
	struct crowd *c = argument;
	struct rng own = {c->seed};
	uint8_t found[512], right[512];

	while (!*c->stop) {
		unsigned i = (unsigned)rng_below(&own, OBJECTS);
		struct object object = object_of(i);
		uint64_t n = sizeof(found),
			 at = rng_below(&own, PIECES - 1) * PIECE + rng_below(&own, PIECE - n);

		if (!store_cache_read(c->cache, &object, at, found, n)) {
			sched_yield();
			continue;
		}
		fill(right, i, at, n);
		if (memcmp(found, right, n) != 0)
			abort();
		c->reads++;
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
	for (unsigned i = 0; i < THREADS; i++) {
		crowd[i] = (struct crowd){cache, rng_next(&rng) | 1, &stop, 0};
		pthread_create(&thread[i], NULL, read_all_the_time, &crowd[i]);
	}
	do
		churn(cache, 600);
	while (!crowd[0].reads || !crowd[1].reads || !crowd[2].reads);
	stop = true;
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(state_of(cache).mismatches, 0);
	assert_int_equal(state_of(cache).used_bytes, used_on_disk());
	store_cache_close(cache);
}

/* In memory if this user may mount that: a disk takes its time to free blocks that are not written
 * yet. */
static int begin(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	snprintf(root, sizeof(root), "%s/cache", tmp ? tmp : "/tmp");
	clear();
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const char *seed = getenv("TOKEND_SEED");
	const struct CMUnitTest tests[] = {
		TEST(test_killed_at_any_moment),
		TEST(test_damaged_files_give_no_wrong_byte),
		TEST(test_the_least_recently_read_piece_is_removed),
		TEST(test_evicted_while_others_read),
	};

	rng.state = (seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u) | 1;
	print_message("seed %llu\n", (unsigned long long)rng.state);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
