/*
 * The cache of decoded frames.
 */
#ifndef TOKEND_SHARD_FRAMES_H
#define TOKEND_SHARD_FRAMES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Where decoded frames are kept: one cache for a daemon, shared by all sessions and threads. A
 * frame is decoded once however many threads wait for it. The least recently used one makes room.
 * The budget covers everything that the cache holds: frames, their records, and decoders with their
 * input buffers. If all of it is in use, a reader waits for another one to finish. The budget is
 * exceeded only by a single frame that is larger than it.
 */
struct frames;
struct zstd_source;

struct frames *frames_new(uint64_t budget_bytes); /* NULL: out of memory */
void frames_free(struct frames *frames);      /* after every source that uses it; NULL: nothing */
uint64_t frames_bytes(struct frames *frames); /* held now */
/*
 * A stream's share of the cache, to be given to its sources instead of the cache. It may decode
 * into three quarters of the budget at a time. All slow shares together may use one quarter, and
 * what they hold does not count for others. Freed before the cache. NULL: out of memory.
 */
struct frames *frames_share(struct frames *frames);
void frames_slow(struct frames *share, bool slow);

/* ---- for zstd.c ---- */

/* The cache that a share is of; of the cache, itself. */
struct frames *frames_cache(struct frames *share);
/* Bytes [from, from + n) of a frame. Any thread; waits for decoding. */
bool frames_read(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	struct fault *fault);
/* The same if the frame is decoded already; otherwise false. */
bool frames_try(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n);
/* Drops the source's frames that nobody uses now. */
void frames_drop(const struct zstd_source *s);

#endif
