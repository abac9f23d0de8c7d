/*
 * The messages of an Arrow IPC file or stream. A file lists its record batches in the footer; in a
 * stream each message gives its own length, and a dictionary may precede a batch.
 */
#ifndef TOKEND_SHARD_ARROW_MESSAGE_H
#define TOKEND_SHARD_ARROW_MESSAGE_H

#include "daemon/shard/arrow_schema.h"

enum {
	ARROW_BLOCK_BYTES = 24, /* of a batch's entry in the footer */
	ARROW_SCHEMA = 1,	/* header_type of a message */
};

struct arrow_block {
	uint64_t begin, metadata, body; /* offset in the file; sizes in bytes */
};

/*
 * Reads the next batch's message into a->message; *@batch is its table. *@end: there is none.
 * False: a->fault.
 */
bool arrow_next_message(
	struct arrow *a, struct arrow_block *block, struct fb_table *batch, bool *end);
/* Reads a stream's first message into a->head. schema->at is 0 if it is absent. */
bool arrow_stream_schema(struct arrow *a, struct fb_table *schema);
/*
 * @what: "Arrow footer" or a->batch, for the message. The footer's version may differ from its
 * batches': pyarrow always writes V5 in footers.
 */
bool arrow_check_version(struct arrow *a, const char *what, int64_t version);

#endif
