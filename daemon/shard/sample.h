/*
 * Looks at 64 KiB of a shard: eight places spread over it, all of a smaller shard, or the beginning
 * of a shard with large compressed frames. A flat file does not state the type of its tokens, and
 * may be anything.
 *
 * Token ids have properties that bytes of other kinds lack. Ids at even and at odd places are
 * alike; of u32 that is read as u16, every second one is small. The high byte of u16 varies less
 * than the low one; in text, compressed or big-endian data it does not. Negative numbers and floats
 * are as frequent as positive ones. All these compare distributions, so a few odd values change
 * nothing. bench/sample.py measures them on shards of real tokenizers.
 */
#ifndef TOKEND_SHARD_SAMPLE_H
#define TOKEND_SHARD_SAMPLE_H

#include "daemon/shard/shard.h"

enum { SAMPLE_PLACES = 8, SAMPLE_PLACE_TOKENS = 4096 };

struct sample_place {
	uint64_t token, tokens;
};

struct sample {
	struct sample_place place[SAMPLE_PLACES];
	unsigned places, n;
	uint32_t value[SAMPLE_PLACES * SAMPLE_PLACE_TOKENS]; /* of all places, one after another */
};

/* NULL: @fault, as shard_read(). Free it with free(). */
struct sample *sample_read(const struct shard *shard, struct fault *fault);

enum sample_kind {
	SAMPLE_FINE,
	SAMPLE_DOUBT,	/* perhaps not meant to be served */
	SAMPLE_FOREIGN, /* of a shard that does not state its type: not tokens */
	SAMPLE_WIDE,	/* likewise: tokens of another type */
};

struct sample_verdict {
	enum sample_kind kind;
	char text[224]; /* "looks like u32 (…); set dtype: u32" */
};

struct sample_verdict sample_judge(const struct sample *sample, const struct shard *shard);
/*
 * Both. SAMPLE_FINE also for shards that cannot be read: a later read reports that.
 */
struct sample_verdict sample_shard(const struct shard *shard);

#endif
