/*
 * Pieces of objects on a local disk. A file has the object's own offsets and holes where pieces are
 * absent:
 *
 *   dir/ab/HASH.data  bytes of the object
 *   dir/ab/HASH.sums  a header that names the object, then XXH64 of each piece (0 stored as 1), or
 *                     0 for a piece that is absent
 *   dir/lock          pid of the daemon that uses the directory, and has locked it
 *
 * HASH is of store, name, ETag, size and piece size, so a replaced object is another file. The data
 * of a piece are written before its sum, and a piece loses its sum before its blocks. After a crash
 * or a power cut a sum may still be there without its data. So a piece is verified once after each
 * start before it is used, and no wrong byte is ever returned. Nothing is synced.
 *
 * A pinned piece stays. Of 8 random pieces that are not pinned, the one that is needed last is
 * evicted.
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
	CACHE_DRAWN = 8,
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
	unsigned files; /* kept open without being read, ≥ 1 */
};

/* Takes the directory. NULL: @fault, also if a daemon uses it. Cheap: see store_cache_scan(). */
struct store_cache *store_cache_open(
	const struct store_cache_options *options, struct fault *fault);
/* After all pins and writes have ended. NULL: does nothing. */
void store_cache_close(struct store_cache *cache);
/* Finds the pieces of earlier daemons, and evicts what is over the size. Once, before any piece is
 * written. */
void store_cache_scan(struct store_cache *cache);
/* Sets the function that knows when pieces are needed, as store_next_use. */
void store_cache_needs(struct store_cache *cache, store_next_use *next_use, const void *context);

enum cache_pin {
	CACHE_PINNED,
	CACHE_UNVERIFIED, /* store_cache_verify() is needed, or the scan has not ended */
	CACHE_ABSENT,
};

/*
 * Pins all pieces of [at, at + n), and sets *@fd; valid until store_cache_unpin(). Otherwise pins
 * nothing, and *@piece is the number of the first piece that is missing. Does not wait.
 */
enum cache_pin store_cache_pin(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t at, uint64_t n, int *fd, uint64_t *piece);
/* Whether the piece is not there. False before the scan has ended. Does not wait. */
bool store_cache_lacks(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece);
/* @fd, @at and @n: of the pin. Does not wait. */
void store_cache_unpin(struct store_cache *cache, int fd, uint64_t at, uint64_t n);
/* Opens the file of a piece and compares the piece with its stored sum. It is verified or absent
 * then. */
void store_cache_verify(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece);

/* A piece that is written. Owned by the caller. */
struct cache_write;

/*
 * Reserves space for a piece that is absent; other pieces are evicted for it. One write of a piece
 * at a time. @position: only pieces that are needed after it are evicted; UINT64_MAX: a
 * read waits, so any. NULL: the cache does not take it now.
 */
struct cache_write *store_cache_write(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece, uint64_t position);
/* Appends bytes of the piece. False: the disk failed, or it would be too long. */
bool store_cache_append(struct cache_write *write, const void *bytes, size_t n);
/* Ends the write and frees it. The piece is present if it is complete and @keep is set. */
bool store_cache_end(struct cache_write *write, bool keep);

/* As store_uncache(). */
uint64_t store_cache_drop(struct store_cache *cache, const char *url, uint64_t most);
/* As store_cached(). */
void store_cache_list(struct store_cache *cache,
	void (*each)(void *context, const char *url, uint64_t pieces, uint64_t bytes),
	void *context);
void store_cache_state(struct store_cache *cache, struct store_cache_status *status);
/* Bytes of the index in memory. */
uint64_t store_cache_memory(struct store_cache *cache);

#endif
