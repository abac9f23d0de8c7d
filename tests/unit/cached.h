/* A cache of small pieces in $TMPDIR, and the objects that it contains. */
#ifndef TEST_CACHED_H
#define TEST_CACHED_H

#include "daemon/store/cache.h"
#include "daemon/store/cache_files.h"
#include "tests/unit/rng.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static inline uint64_t used_on_disk(void)
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

static uint64_t sum_of(const struct object *object, uint64_t piece)
{
	return object->sums ? object->sums[piece] : 0;
}

/* Verifies what has to be verified. True: pinned. */
static bool pin_object(
	struct store_cache *cache, struct object object, uint64_t at, uint64_t n, int *fd)
{
	uint64_t piece;

	for (int tries = 0; tries < 2 * PIECES; tries++)
		switch (store_cache_pin(cache, &place, &object, at, n, fd, &piece)) {
		case CACHE_PINNED:
			return true;
		case CACHE_ABSENT:
			return false;
		case CACHE_UNVERIFIED:
			store_cache_verify(cache, &place, &object, piece, sum_of(&object, piece));
		}
	fail_msg("it is neither pinned nor absent");
	return false;
}

static bool pin(struct store_cache *cache, unsigned i, uint64_t at, uint64_t n, int *fd)
{
	return pin_object(cache, object_of(i), at, n, fd);
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

#endif
