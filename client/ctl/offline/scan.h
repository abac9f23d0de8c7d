/*
 * Reads all of a shard with as many threads as there are processors, and reports what is in it.
 */
#ifndef TOKEND_CTL_SCAN_H
#define TOKEND_CTL_SCAN_H

#include "client/ctl/common/progress.h"
#include "daemon/shard/shard.h"

enum {
	CTL_THREADS = 64,	     /* at most */
	CTL_DIGEST_TOKENS = 1 << 20, /* in a piece of the digest */
};

/* How many processors this process may use, at most CTL_THREADS. */
unsigned ctl_processors(void);
/* Calls @work(context) in @n threads at once, including this one, and waits for all. If fewer
 * threads can be created, it uses those. */
void ctl_threads(unsigned n, void *(*work)(void *context), void *context);

/*
 * The digest of tokens is that of their values, independent of format and width: the sum, modulo
 * 2^64, over pieces of so many tokens of XXH3-64 of the piece as little-endian u32, seeded with its
 * number.
 */
uint64_t ctl_digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece);

struct ctl_scan {
	const struct shard *shard;
	uint64_t piece_tokens; /* of the digest */
	uint64_t vocab;	       /* 0, or what ids must be below */
	bool digests;
	bool masks; /* the shard was opened with loss_mask */
	struct ctl_progress *progress;

	/* the result */
	uint64_t digest;	       /* if it was requested and all could be read */
	uint64_t most;		       /* the largest id */
	uint64_t masked;	       /* tokens that may not be labels; masks */
	uint64_t beyond, beyond_value; /* the first token not below vocab, or SHARD_UNKNOWN */
	uint64_t failures;	       /* reads that failed: */
	uint64_t failed_token;	       /* the first token of the first one, */
	struct fault failed;	       /* and its fault */
};

/* False: out of memory; everything else that can be wrong is in the result. */
bool ctl_scan(struct ctl_scan *scan);

#endif
