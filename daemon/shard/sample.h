/*
 * Guesses the type of a flat shard's tokens from 64 KiB: eight places spread over the shard, all of
 * a smaller shard, or the beginning of a shard with large compressed frames.
 *
 * A flat file does not state the type of its tokens. If u32 tokens are read as u16, every second
 * one is 0, or at most 3 if ids are below 2^18. A guess requires that no token contradicts it and
 * that the other tokens vary: zeros, padding and a few tokens prove nothing.
 */
#ifndef TOKEND_SHARD_SAMPLE_H
#define TOKEND_SHARD_SAMPLE_H

#include "daemon/shard/shard.h"

enum { SAMPLE_PLACES = 8, SAMPLE_PLACE_BYTES = 8192 };

struct sample_place {
	uint64_t token, tokens;
};

/*
 * Writes the places to read to @place[SAMPLE_PLACES] and returns their number. token and tokens are
 * multiples of 4, except at the shard's end.
 */
unsigned sample_places(const struct shard *shard, struct sample_place *place);

/* Statistics of a flat shard's tokens, in the config's width. Initially all 0. */
struct sample_guess {
	uint32_t most[4]; /* the largest token, by index mod 4 */
	uint32_t last;	  /* the last token above 3 with an even index */
	uint64_t changes; /* how often `last` changed */
};

/* Adds @n contiguous tokens. The index of the first one is a multiple of 4. */
void sample_add(struct sample_guess *guess, const void *tokens, uint64_t n, uint32_t token_bytes);
/* Does a token contradict every guess? Then no more need be added. */
bool sample_settled(const struct sample_guess *guess);
/* "looks like u32 (every second u16 is 0); set dtype: u32", or NULL: the dtype seems right. */
const char *sample_looks(const struct sample_guess *guess, uint32_t token_bytes);
/*
 * Samples an open shard and returns sample_looks(). NULL also for formats that state the type of
 * their tokens, and for shards that cannot be read: a later read reports that.
 */
const char *sample_shard(const struct shard *shard);

#endif
