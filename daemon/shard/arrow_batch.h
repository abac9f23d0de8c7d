/*
 * The record batches of an Arrow IPC file. Each begins with its own metadata: its number of rows,
 * and where in its body each column's buffers are.
 */
#ifndef TOKEND_SHARD_ARROW_BATCH_H
#define TOKEND_SHARD_ARROW_BATCH_H

#include "daemon/shard/arrow_schema.h"

enum { ARROW_BLOCK_BYTES = 24 }; /* of a batch's entry in the footer */

/*
 * Reads batch @i; call it for each batch in order. Sets *@rows to its number of tokens and *@at to
 * their offset in the file. False: a->fault.
 */
bool arrow_next(struct arrow *a, uint32_t i, uint64_t *rows, uint64_t *at);
/*
 * @what: "Arrow footer" or a->batch, for the message. The footer's version may differ from its
 * batches': pyarrow always writes V5 in footers.
 */
bool arrow_check_version(struct arrow *a, const char *what, int64_t version);

#endif
