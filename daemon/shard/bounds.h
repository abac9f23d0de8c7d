/*
 * Lists of document bounds: side files of shards whose format does not keep documents. The list of
 * NAME.npy or NAME.bin is NAME.csv.gz, as dolma and OLMo write it: gzipped CSV without a heading.
 * The first column is the index of a document's first token, the second that after its last token;
 * other columns are ignored. Documents ascend and do not overlap. Tokens between two documents
 * belong to neither.
 *
 * A list by `tokctl pack --fit` says in its gzip comment (BOUNDS_ROWS) that the shard is rows, each
 * of whole documents and then padding, which is outside documents.
 */
#ifndef TOKEND_SHARD_BOUNDS_H
#define TOKEND_SHARD_BOUNDS_H

#include "daemon/shard/bytes.h"

#define BOUNDS_ENDING ".csv.gz"
#define BOUNDS_ROWS   "tokend: rows of %" PRIu64 " tokens, %" PRIu64 " of padding"

struct bounds;

/*
 * Sets *@id to the bytes_id() of the shard's list, without opening it; 0: there is none. @objects:
 * NULL, or where it is. On failure returns false and @fault; a later call may succeed.
 */
bool bounds_side_id(
	const struct objects *objects, const char *shard, uint32_t *id, struct fault *fault);
/*
 * Sets *@row_tokens to the length of the shard's rows and *@padding to the tokens outside its
 * documents, as the list's first bytes say; 0: it has no rows. False: @fault.
 */
bool bounds_rows(const struct bytes *shard, uint64_t tokens, uint64_t *row_tokens,
	uint64_t *padding, struct fault *fault);
/*
 * Reads and checks the whole list. *@bounds is NULL if there is none. Takes two or three bytes of
 * memory per document that is not empty. On failure returns false; @fault gives file, row, field,
 * value and limit.
 */
bool bounds_open(
	const struct bytes *shard, uint64_t tokens, struct bounds **bounds, struct fault *fault);
void bounds_close(struct bounds *bounds);

uint32_t bounds_id(const struct bounds *bounds);	/* bytes_id() of the list */
uint64_t bounds_documents(const struct bounds *bounds); /* empty ones included */
uint64_t bounds_outside(const struct bounds *bounds);	/* tokens outside documents */
uint64_t bounds_bytes(const struct bounds *bounds);	/* its memory */
/*
 * The next boundary after @token (< the shard's tokens): where a document begins or ends, or the
 * end of the shard.
 */
uint64_t bounds_next(const struct bounds *bounds, uint64_t token);
/* Clears @to[i] for each of the @n tokens token + i that is outside documents. */
void bounds_mask(const struct bounds *bounds, uint64_t token, uint64_t n, uint8_t *to);

#endif
