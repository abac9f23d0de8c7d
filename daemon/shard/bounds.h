/*
 * Where documents begin and end, in a file beside shards whose format does not say: NAME.csv.gz
 * beside NAME.npy or NAME.bin, as dolma and OLMo write it. Gzip of CSV without a heading: first
 * token of a document, the one behind its last, and whatever else. Documents ascend and do not
 * overlap; tokens between them are in none.
 */
#ifndef TOKEND_SHARD_BOUNDS_H
#define TOKEND_SHARD_BOUNDS_H

#include "daemon/shard/bytes.h"

#define BOUNDS_ENDING ".csv.gz"

struct bounds;

/* bytes_id() of what lies beside the shard, which is not opened; 0: nothing does. */
uint32_t bounds_side_id(const char *shard);
/*
 * Reads all of it, checked: two or three bytes a document are kept, and one of no tokens takes
 * none. *@bounds is NULL where there is none. False: one line, file:row: field, value, limit.
 */
bool bounds_open(const char *shard, uint64_t tokens, struct bounds **bounds, struct fault *fault);
void bounds_close(struct bounds *bounds);

uint32_t bounds_id(const struct bounds *bounds);	/* of the file, when it was read */
uint64_t bounds_documents(const struct bounds *bounds); /* empty ones, too */
uint64_t bounds_outside(const struct bounds *bounds);	/* tokens in no document */
uint64_t bounds_bytes(const struct bounds *bounds);	/* of memory that it holds */
/* The least boundary > @token (< the shard's tokens), at most the shard's tokens: where a document
 * begins or ends. */
uint64_t bounds_next(const struct bounds *bounds, uint64_t token);
/* Writes 0 to each of @n bytes, one a token from @token on, whose token is in no document. */
void bounds_mask(const struct bounds *bounds, uint64_t token, uint64_t n, uint8_t *to);

#endif
