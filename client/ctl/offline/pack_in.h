/* The input of `tokctl pack`: all shards one after another, as one row of tokens. */
#ifndef TOKEND_CTL_PACK_IN_H
#define TOKEND_CTL_PACK_IN_H

#include "client/ctl/offline/pack_source.h"
#include "proto/fault.h"

#include <pthread.h>

/* Contents of a source that the packed file cannot have. */
enum pack_loss {
	PACK_DOCUMENTS, /* document bounds */
	PACK_OUTSIDE,	/* tokens outside all documents */
	PACK_MASK,	/* a loss mask */
	PACK_PADDING,	/* what is padding: it is packed in rows already */
	PACK_LOSSES,
};

struct pack_in {
	struct ctl_input input;
	struct stores *stores;	   /* NULL: no input is a URL; the caller's */
	struct pack_place **place; /* of each URL */
	unsigned places;
	bool has_eos;
	uint64_t eos; /* ends a document in formats without document bounds */
	struct pack_source *source;
	uint64_t sources, room;
	uint64_t unindexed; /* number of sources without document bounds */
	uint64_t tokens;
	uint32_t token_bytes; /* the largest width of a source */
	uint64_t digest;      /* of the names and identities of all sources */
	struct {
		uint64_t first, sources; /* the first source concerned; the number of them */
	} loss[PACK_LOSSES];
	pthread_mutex_t lock; /* over shard, fd, users, opening and ended of all sources */
	pthread_cond_t opened;
};

void pack_in_begin(struct pack_in *in);
/* Lists the shards of the @n paths, files or URLs, and opens each once for its facts. */
bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault);
void pack_in_end(struct pack_in *in);
/*
 * Reads tokens [token, token + n) of the row into @to, with @token_bytes each. Fails for a token
 * above @most. @scratch: room for n × 4 bytes. Any thread.
 */
bool pack_in_read(struct pack_in *in, uint64_t token, uint64_t n, void *to, uint32_t token_bytes,
	uint64_t most, void *scratch, struct fault *fault);
/*
 * Finds the ends of documents in [token, token + n), whose tokens are @tokens. Writes them into
 * @at, ascending and relative to @token; it has room for n. The end of a source ends a document.
 * Returns their number; -1: a fault. Any thread.
 */
int64_t pack_in_documents(struct pack_in *in, uint64_t token, uint64_t n, const void *tokens,
	uint32_t token_bytes, uint32_t *at, struct fault *fault);
/* Whether the files with tokens [begin, end) are unchanged. False: @fault. No thread reads them. */
bool pack_in_same(struct pack_in *in, uint64_t begin, uint64_t end, struct fault *fault);
/* Sets *@boundary to the first token from @token on with which a document begins, or to the end of
 * the row. */
bool pack_in_boundary(struct pack_in *in, uint64_t token, uint64_t *boundary, struct fault *fault);

#endif
