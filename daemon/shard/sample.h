/*
 * Guesses the type of a shard's tokens from a sample: 64 KiB in eight places from its beginning to
 * its end, all of a smaller one, and the beginning of a shard with large compressed frames.
 *
 * A flat file does not say what type its tokens have. u32 tokens that are read as u16 are twice as
 * many, and every second one is 0, or at most 3 if ids are below 2^18. A guess needs complete
 * evidence (no token contradicts) and rich evidence (the other tokens vary): zeros, padding and a
 * few tokens prove nothing.
 */
#ifndef TOKEND_SHARD_SAMPLE_H
#define TOKEND_SHARD_SAMPLE_H

#include "daemon/shard/shard.h"

enum { SAMPLE_PLACES = 8, SAMPLE_PLACE_BYTES = 8192 };

struct sample_place {
	uint64_t token, tokens;
};

/* Where to read the shard. Returns how many places; token and tokens are multiples of 4, but at its
 * end. */
unsigned sample_places(const struct shard *shard, struct sample_place *place);

/* Of tokens of a flat shard, in the width that the config says. All 0 at the beginning. */
struct sample_guess {
	uint32_t most[4]; /* by index mod 4 */
	uint32_t last;	  /* the last even-numbered token above 3, */
	uint64_t changes; /* and how often it was another one than before */
};

/* @n tokens in a row, the first of which has a number that is a multiple of 4. */
void sample_add(struct sample_guess *guess, const void *tokens, uint64_t n, uint32_t token_bytes);
/* "looks like u32 (every second u16 is 0); set dtype: u32", or NULL: like what the config says. */
const char *sample_looks(const struct sample_guess *guess, uint32_t token_bytes);
/*
 * Both for an open shard. NULL also for formats that say what type their tokens have, and for
 * shards that cannot be read: a later read reports that.
 */
const char *sample_shard(const struct shard *shard);

#endif
