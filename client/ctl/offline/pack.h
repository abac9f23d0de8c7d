/*
 * tokctl pack in three parts: what goes in, seen as one row of tokens (pack_in.c); one file that
 * comes out (pack_out.c); which files that are, and what of them is already there (pack.c).
 */
#ifndef TOKEND_CTL_PACK_H
#define TOKEND_CTL_PACK_H

#include "client/ctl/common/progress.h"
#include "client/ctl/offline/input.h"

#include <limits.h>
#include <pthread.h>

enum { PACK_WHY = 2 * PATH_MAX };

/* ---- what goes in ---- */

struct pack_source {
	char *path;
	uint64_t begin, tokens; /* its place in the row */
	uint64_t identity;	/* of the file and what lies beside it */
	struct shard *shard;	/* open while somebody reads from it */
	int fd;
	unsigned users;
	bool ended; /* somebody has read to its end */
};

/* What a source has and the packed file cannot say. */
enum pack_loss {
	PACK_DOCUMENTS, /* where they begin and end; not asked for by the hint */
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

/* Lists and opens each of @path once. False: a line in @why. */
bool pack_in_begin(struct pack_in *in, char *const *path, int n, char *why);
void pack_in_end(struct pack_in *in);
/*
 * Tokens [token, token + n) of the row into @to, in @token_bytes each, which are to be at most
 * @most. Any thread. @scratch: room for n × 4 bytes.
 */
bool pack_in_read(struct pack_in *in, uint64_t token, uint64_t n, void *to, uint32_t token_bytes,
	uint64_t most, void *scratch, char *why);
/*
 * Where documents end in [token, token + n), as numbers of tokens from @token on, ascending, into
 * @at, which has room for n. @tokens are these. The end of a source ends a document. -1: @why.
 */
int64_t pack_in_documents(struct pack_in *in, uint64_t token, uint64_t n, const void *tokens,
	uint32_t token_bytes, uint32_t *at, char *why);
/* The first place ≥ @token of the row where a document begins or the row ends. False: @why. */
bool pack_in_boundary(struct pack_in *in, uint64_t token, uint64_t *boundary, char *why);

/* ---- what comes out ---- */

enum pack_format { PACK_FLAT, PACK_ZSTD, PACK_MEGATRON };

struct pack_how {
	enum pack_format format;
	uint32_t token_bytes;
	int level;
	uint32_t frame_bytes;
	struct ctl_progress *progress;
};

struct pack_result {
	uint64_t bytes;	    /* of the file */
	uint64_t documents; /* PACK_MEGATRON */
	uint64_t digest;    /* as of ctl_scan() */
};

/*
 * Writes tokens [begin, end) of @in to @part, which is replaced, and what goes beside it; reads
 * back and compares; makes it durable. False: a line in @why, and nothing is left.
 */
bool pack_out(struct pack_in *in, const struct pack_how *how, uint64_t begin, uint64_t end,
	const char *part, struct pack_result *result, char *why);
/* Renames @part, and what is beside it, to @path, where nothing may be. */
bool pack_out_publish(const struct pack_how *how, const char *part, const char *path, char *why);
/* Removes @part and what is beside it, if they are there. */
void pack_out_remove(const char *part);

#endif
