/* The cache of decoded zstd frames. */
#ifndef TOKEND_SHARD_FRAMES_H
#define TOKEND_SHARD_FRAMES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A daemon has one cache, shared by all sessions and threads. A frame is decoded once, however many
 * threads wait for it. The least recently used frame makes room for a new one. The budget covers
 * everything that the cache holds: frames, their records, and decoders with their input buffers. If
 * all of it is in use, a reader waits until another one finishes. Only a single frame that is
 * larger than the budget may exceed it, and the first frame of each share.
 */
struct frames;
struct zstd_source;

struct frames *frames_new(uint64_t budget_bytes); /* NULL: out of memory */
void frames_free(struct frames *frames); /* after every source that uses it; NULL: does nothing */
uint64_t frames_bytes(struct frames *frames); /* in use now */
/*
 * A stream's share of the cache: pass it to the stream's sources instead of the cache. It may
 * decode one frame at any time, and at the same time others, all in half of what the other shares
 * leave of the budget. So storage that hangs stops no other stream. Free shares before the cache.
 * NULL: out of memory.
 */
struct frames *frames_share(struct frames *frames);

/* ---- for zstd.c ---- */

/* The cache of a share; the cache itself if it is one. */
struct frames *frames_cache(struct frames *share);
/* Reads bytes [from, from + n) of a decoded frame. Any thread; waits for decoding. */
bool frames_read(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	struct fault *fault);
/* The same, but returns false unless the frame is decoded already. */
bool frames_try(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n);

#endif
