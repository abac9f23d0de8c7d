/* What `tokctl pack` reads: shards one after another, seen as one row of tokens. */
#ifndef TOKEND_CTL_PACK_IN_H
#define TOKEND_CTL_PACK_IN_H

#include "client/ctl/offline/input.h"
#include "proto/fault.h"

#include <pthread.h>

struct pack_source {
	char *path;
	uint64_t begin, tokens; /* its part of the row */
	uint64_t identity;	/* of the file and its side files */
	struct shard *shard;	/* open while it is being read */
	int fd;
	unsigned users;
	bool ended; /* it was read to its end */
};

/* What a source has and the packed file cannot contain. */
enum pack_loss {
	PACK_DOCUMENTS, /* their bounds; not requested by the hint */
	PACK_OUTSIDE,	/* that tokens are in no document */
	PACK_MASK,
	PACK_LOSSES,
};

struct pack_in {
	struct ctl_input input;
	bool has_eos;
	uint64_t eos; /* ends a document where the format knows none */
	struct pack_source *source;
	uint64_t sources, room;
	uint64_t tokens;
	uint32_t token_bytes; /* the largest width that they are served in */
	uint64_t digest;      /* of names, sizes, times and counts */
	struct {
		uint64_t first, sources; /* from which it is lost; how many */
	} loss[PACK_LOSSES];
	pthread_mutex_t lock; /* over shard, fd, users and ended */
};

/* Lists and opens each of @path once. */
bool pack_in_begin(struct pack_in *in, char *const *path, int n, struct fault *fault);
void pack_in_end(struct pack_in *in);
/*
 * Tokens [token, token + n) of the row into @to, in @token_bytes each, which are to be at most
 * @most. Any thread. @scratch: room for n × 4 bytes.
 */
bool pack_in_read(struct pack_in *in, uint64_t token, uint64_t n, void *to, uint32_t token_bytes,
	uint64_t most, void *scratch, struct fault *fault);
/*
 * Where documents end in [token, token + n), as numbers of tokens from @token on, ascending, into
 * @at, which has room for n. @tokens are these. The end of a source ends a document. -1: a fault.
 */
int64_t pack_in_documents(struct pack_in *in, uint64_t token, uint64_t n, const void *tokens,
	uint32_t token_bytes, uint32_t *at, struct fault *fault);
/* The first place ≥ @token of the row where a document begins or the row ends. */
bool pack_in_boundary(struct pack_in *in, uint64_t token, uint64_t *boundary, struct fault *fault);

#endif
