/*
 * The record batches of an Arrow IPC file: each begins with its own metadata, which says how many
 * rows it has and where in its body each column's buffers lie.
 */
#ifndef TOKEND_SHARD_ARROW_BATCH_H
#define TOKEND_SHARD_ARROW_BATCH_H

#include "daemon/shard/arrow_schema.h"

enum { ARROW_BLOCK_BYTES = 24 }; /* of a batch in the footer */

/* The next batch, which is number @i: @rows tokens from byte *@at of the file on. */
bool arrow_next(struct arrow *a, uint32_t i, uint64_t *rows, uint64_t *at);
/* @what: "Arrow footer", or a batch. pyarrow's footers say V5 whatever their batches say, so these
 * need not agree. */
bool arrow_check_version(struct arrow *a, const char *what, int64_t version);

#endif
