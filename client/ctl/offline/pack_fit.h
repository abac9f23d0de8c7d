/*
 * One shard of `tokctl pack --fit`: a window of documents, in memory, that are packed into rows.
 * Each row is filled up with padding, which repeats its last token. The shard's list of document
 * bounds, a .csv.gz, leaves the padding out, so a loss mask excludes it.
 */
#ifndef TOKEND_CTL_PACK_FIT_H
#define TOKEND_CTL_PACK_FIT_H

#include "client/ctl/offline/pack_format.h"
#include "client/ctl/offline/pack_in.h"
#include "client/ctl/offline/pack_rows.h"

enum {
	PACK_FIT_TOKENS = 1 << 27, /* of a window, if --shards does not say */
	PACK_FIT_MOST = 1 << 28,   /* of any; with 20 bytes per document about 1 GiB of u32 */
	PACK_FIT_ROW = 1 << 24,	   /* of a row, at most */
};

struct pack_fit {
	struct pack_rows rows;
	uint64_t row_tokens, pieces, padding;
	uint64_t split; /* documents that windows of a row's length would cut without --fit */
	void *tokens;	/* of the window; owned */
	uint32_t token_bytes;
};

/*
 * Reads tokens [begin, end) of the row of inputs, which are whole documents, and packs them.
 * False: @fault. Call pack_fit_end() either way.
 */
bool pack_fit_begin(struct pack_fit *f, struct pack_in *in, const struct pack_how *how,
	uint64_t begin, uint64_t end, struct fault *fault);
void pack_fit_end(struct pack_fit *f);
/* Copies tokens [token, token + n) of the rows, in order, to @to. Any thread. */
void pack_fit_read(const struct pack_fit *f, uint64_t token, uint64_t n, void *to);
/* Writes the list of the documents' bounds durably to @path. */
bool pack_fit_list(const struct pack_fit *f, const char *path, struct fault *fault);

#endif
