/* The cache of decoded zstd frames. */
#ifndef TOKEND_SHARD_FRAMES_H
#define TOKEND_SHARD_FRAMES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A daemon has one cache, shared by all sessions and threads. A frame is decoded once, however many
 * threads wait for it. The least recently used frames make room for a new one. The budget covers
 * frames with their records, and while a frame is decoded its compressed bytes and the decoder.
 */
struct frames;
struct zstd_source;

struct frames *frames_new(uint64_t budget_bytes); /* NULL: out of memory */
void frames_free(struct frames *frames); /* after every source that uses it; NULL: does nothing */
uint64_t frames_bytes(struct frames *frames); /* in use now */
/*
 * A stream's share of the cache: pass it to the stream's sources instead of the cache. It may
 * decode one frame at any time, even beyond the budget, and at the same time others, all in half of
 * what the other shares leave of the budget. So storage that hangs stops no other stream. Free
 * shares before the cache. NULL: out of memory.
 */
struct frames *frames_share(struct frames *frames);

/*
 * For zstd.c: reads bytes [from, from + n) of a decoded frame. Any thread; waits for decoding.
 * @fault: NULL: returns false unless the frame is decoded already.
 */
bool frames_read(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	struct fault *fault);

#endif
