/*
 * Lists of document bounds: side files of shards whose format does not know documents. The list of
 * NAME.npy or NAME.bin is NAME.csv.gz, as dolma and OLMo write it: gzip of CSV without a heading.
 * The first two columns are a document's first token and the one after its last; others are
 * ignored. Documents ascend and do not overlap. Tokens between them are in no document.
 */
#ifndef TOKEND_SHARD_BOUNDS_H
#define TOKEND_SHARD_BOUNDS_H

#include "daemon/shard/bytes.h"

#define BOUNDS_ENDING ".csv.gz"

struct bounds;

/* *@id: bytes_id() of the shard's list, without opening it; 0: there is none. False: it cannot be
 * looked at now. */
bool bounds_side_id(const char *shard, uint32_t *id, struct fault *fault);
/*
 * Reads and checks the whole list. It takes two or three bytes of memory a document, and none for
 * an empty one. *@bounds is NULL if there is none. False: @fault gives file, row, field, value,
 * limit.
 */
bool bounds_open(const char *shard, uint64_t tokens, struct bounds **bounds, struct fault *fault);
void bounds_close(struct bounds *bounds);

uint32_t bounds_id(const struct bounds *bounds);	/* bytes_id() of the file that was read */
uint64_t bounds_documents(const struct bounds *bounds); /* empty ones included */
uint64_t bounds_outside(const struct bounds *bounds);	/* tokens in no document */
uint64_t bounds_bytes(const struct bounds *bounds);	/* memory that it takes */
/* The least boundary > @token (< the shard's tokens) where a document begins or ends; the shard's
 * end is one. */
uint64_t bounds_next(const struct bounds *bounds, uint64_t token);
/* @to has a byte for each of @n tokens from @token on: clears those of tokens in no document. */
void bounds_mask(const struct bounds *bounds, uint64_t token, uint64_t n, uint8_t *to);

#endif
