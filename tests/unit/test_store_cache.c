/*
 * The cache of pieces on a real directory: killed at any moment, flipped bits, lost data, eviction
 * under readers. It never returns a wrong byte, and never takes more space than it may.
 */
#include "daemon/store/cache.h"
#include "daemon/store/cache_files.h"
#include "tests/unit/rng.h"

#include <fcntl.h>
#include <ftw.h>
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

static const struct url_place place = {
	.name = "s3://corpus", .host = "127.0.0.1:9000", .base = "/corpus/"};
static const char *const keys[OBJECTS] = {
	"web/a.bin", "web/b.bin", "web/c.bin", "code/a.bin", "code/ü b.bin", "x"};

static struct object object_of(unsigned i)
{
	return (struct object){
		.key = keys[i], .etag = i == 5 ? NULL : "e1", .size = object_bytes, .piece = PIECE};
}

/* The contents of an object. No two pieces are equal. */
static void fill(uint8_t *to, unsigned i, uint64_t at, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] = (uint8_t)((at + k) * 31 + ((at + k) >> 13) * 7 + i * 101 + 1);
}

static struct store_cache *open_cache(uint64_t size)
{
	struct fault fault = {0};
	struct store_cache *cache = store_cache_open(
		&(struct store_cache_options){.dir = root, .size = size, .files = 3}, &fault);

	if (!cache)
		fail_msg("%s", fault.text);
	store_cache_scan(cache);
	return cache;
}

static uint64_t bytes_of(uint64_t piece)
{
	return cache_piece_bytes(object_bytes, PIECE, piece);
}

/* Bytes that the directory takes on the disk. */
static uint64_t disk_bytes;

static int add_blocks(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	size_t n = strlen(path);

	(void)type, (void)ftw;
	if (n > 5 && (strcmp(path + n - 5, ".data") == 0 || strcmp(path + n - 5, ".sums") == 0))
		disk_bytes += (uint64_t)st->st_blocks * 512;
	return 0;
}

static uint64_t used_on_disk(void)
{
	disk_bytes = 0;
	nftw(root, add_blocks, 8, FTW_PHYS);
	return disk_bytes;
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

/* Writes a piece in parts of different lengths. False: the cache does not take it. */
static bool put(struct store_cache *cache, unsigned i, uint64_t piece, uint64_t position)
{
	static uint8_t body[PIECE];
	struct object object = object_of(i);
	struct cache_write *w = store_cache_write(cache, &place, &object, piece, position);
	bool good = true;

	if (!w)
		return false;
	fill(body, i, piece * PIECE, bytes_of(piece));
	for (uint64_t at = 0; good && at < bytes_of(piece);) {
		uint64_t n = 1 + rng_below(&rng, 30000);

		n = n < bytes_of(piece) - at ? n : bytes_of(piece) - at;
		good = store_cache_append(w, body + at, n);
		at += n;
	}
	return store_cache_end(w, good);
}

/* Verifies what has to be verified. True: pinned. */
static bool pin(struct store_cache *cache, unsigned i, uint64_t at, uint64_t n, int *fd)
{
	struct object object = object_of(i);
	uint64_t piece;

	for (int tries = 0; tries < 2 * PIECES; tries++)
		switch (store_cache_pin(cache, &place, &object, at, n, fd, &piece)) {
		case CACHE_PINNED:
			return true;
		case CACHE_ABSENT:
			return false;
		case CACHE_UNVERIFIED:
			store_cache_verify(cache, &place, &object, piece);
		}
	fail_msg("it is neither pinned nor absent");
	return false;
}

/* Reads a range as the reader does. False: it is not in the cache. Its bytes are the object's. */
static bool get(struct store_cache *cache, unsigned i, uint64_t at, uint64_t n)
{
	static uint8_t found[2 * PIECE], right[2 * PIECE];
	int fd;

	if (!pin(cache, i, at, n, &fd))
		return false;
	assert_int_equal(pread(fd, found, n, (off_t)at), n);
	store_cache_unpin(cache, fd, at, n);
	fill(right, i, at, n);
	assert_memory_equal(found, right, n);
	return true;
}

static bool get_piece(struct store_cache *cache, unsigned i, uint64_t piece)
{
	return get(cache, i, piece * PIECE, bytes_of(piece));
}

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
			store_cache_verify(c->cache, &place, &object, piece);
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
		TEST(test_evicted_while_others_read),
	};

	rng.state = (seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u) | 1;
	print_message("seed %llu\n", (unsigned long long)rng.state);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
