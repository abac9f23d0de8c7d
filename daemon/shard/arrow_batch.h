/*
 * The record batches of an Arrow IPC file or stream. Each begins with its own metadata: its number
 * of rows, and where in its body each column's buffers are.
 */
#ifndef TOKEND_SHARD_ARROW_BATCH_H
#define TOKEND_SHARD_ARROW_BATCH_H

#include "daemon/shard/arrow_message.h"

struct arrow_batch {
	uint64_t rows;
	uint64_t tokens, at; /* contiguous, from this offset in the file on */
	/* Of lists with offsets: where the offsets and the validity (0: none) are in the file. */
	uint64_t lists_at, valid_at;
	bool nulls; /* some lists are null */
};

/* Reads the next batch. *@end: there is none. False: a->fault. */
bool arrow_next(struct arrow *a, struct arrow_batch *to, bool *end);

#endif
