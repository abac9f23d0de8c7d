/*
 * Reads all tokens of a shard with one thread per processor: digest, largest token, faults.
 */
#ifndef TOKEND_CTL_SCAN_H
#define TOKEND_CTL_SCAN_H

#include "client/ctl/common/progress.h"
#include "daemon/shard/shard.h"

enum { CTL_DIGEST_TOKENS = 1 << 20 }; /* per piece of the digest */

/*
 * The digest of one piece. A shard's digest depends only on the tokens' values, not on format or
 * width: it is the sum modulo 2^64, over its pieces of CTL_DIGEST_TOKENS tokens, of the XXH3-64 of
 * the piece as little-endian u32, seeded with the number of the piece.
 */
uint64_t ctl_digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece);

struct ctl_scan {
	const struct shard *shard;
	uint64_t piece_tokens; /* per piece of the digest */
	unsigned threads;      /* 0: one per processor */
	bool whole;	/* a piece is one read: for a store. Otherwise some that fit a cache */
	uint64_t vocab; /* tokens must be below it; 0: no limit */
	bool digests;	/* compute the digest */
	bool masks;	/* count masked tokens; the shard was opened with loss_mask */
	struct ctl_progress *progress;

	/* the result */
	uint64_t digest;	       /* valid if all reads succeeded */
	uint64_t most;		       /* the largest token */
	uint64_t masked;	       /* number of tokens that may not be labels */
	uint64_t beyond, beyond_value; /* index and value of the first token not below vocab;
					  SHARD_UNKNOWN: none */
	uint64_t failures;	       /* number of failed reads */
	uint64_t failed_token;	       /* first token of the first failed read */
	struct fault failed;	       /* fault of that read */
};

/* False: out of memory. All other faults are in the result. */
bool ctl_scan(struct ctl_scan *scan);

#endif
