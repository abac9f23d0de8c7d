/*
 * Pieces of objects on a local disk, each in a file of its own:
 *
 *   dir/ab/HASH/name          the object: URL, ETag, server, size, size of its pieces
 *   dir/ab/HASH/NUMBER.piece  a piece, then its XXH64 and which daemon compared them last
 *   dir/lock                  pid of the daemon that has locked the directory
 *
 * HASH is the beginning of the SHA-256 of `name`, so a replaced object is another directory. There
 * is no other index: who reads a piece opens its file.
 *
 * A piece is written to another file, which is renamed when it is whole. So a daemon that is killed
 * leaves whole pieces or none. Nothing is synced: after a power cut a piece may have other bytes.
 * So each piece is compared with its sum before a daemon first reads it. When there is no space
 * left, the pieces that were not read for the longest time are removed, by their files' times; who
 * reads one reads on.
 *
 * Functions may be called in any thread. Those that do not say so may wait for the disk.
 */
#ifndef TOKEND_STORE_CACHE_H
#define TOKEND_STORE_CACHE_H

#include "daemon/store/store.h"
#include "daemon/store/url.h"

#include <stdbool.h>
#include <stdint.h>

struct store_cache;

enum {
	CACHE_LEAST_PIECES = 64,
	CACHE_BLOCK = 4096, /* of the disk, for counting */
	CACHE_RETRY_S = 60, /* after a fault of the disk */
};

/* Whether @dir can be a cache of @size bytes; creates it. For a check next to a running daemon: the
 * lock is not taken. False: @fault, whose text begins with @dir. */
bool store_cache_suits(const char *dir, uint64_t size, struct fault *fault);

struct store_cache_options {
	const char *dir;
	uint64_t size;
	/* As in struct store_options. */
	void (*log)(void *context, const char *line);
	void *log_context;
};

/* Takes the directory, and starts a thread that adds up the pieces of earlier daemons. NULL:
 * @fault, also if another daemon uses it. */
struct store_cache *store_cache_open(
	const struct store_cache_options *options, struct fault *fault);
/* After every thread has left the functions below. NULL: does nothing. */
void store_cache_close(struct store_cache *cache);
/* Whether store_cache_put() takes pieces: not for CACHE_RETRY_S after a fault of the disk. Does not
 * wait. */
bool store_cache_takes(struct store_cache *cache);

/* Reads bytes [at, at + n), which are in one piece. False: the piece is not there, or was damaged
 * and is dropped. */
bool store_cache_read(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t at, void *to, size_t n);
/* Adds a piece, and removes others for it, unless it is there or cannot be written. */
void store_cache_put(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece, const void *bytes);

/* As store_uncache(). */
uint64_t store_cache_drop(struct store_cache *cache, const char *url, uint64_t most);
/* As store_cached(). */
void store_cache_list(struct store_cache *cache,
	void (*each)(void *context, const char *url, uint64_t pieces, uint64_t bytes),
	void *context);
/* Does not wait. */
void store_cache_state(struct store_cache *cache, struct store_cache_status *status);

static inline uint64_t cache_piece_bytes(uint64_t size, uint64_t piece, uint64_t number)
{
	uint64_t left = size - number * piece;

	return left < piece ? left : piece;
}

/* ---- cache_dir.c, for cache.c ---- */

/* Creates the directory, judges it, and locks it until its descriptor is closed, which is returned.
 * -1: @fault. */
int cache_dir_take(const char *path, uint64_t size, struct fault *fault);

#endif
