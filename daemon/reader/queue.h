/*
 * Assigns files to queued reads. Reads wait here for an entry of the table of open shards. Each
 * stream has its own queue, so its reads do not wait for those of another stream.
 */
#ifndef TOKEND_READER_QUEUE_H
#define TOKEND_READER_QUEUE_H

#include "daemon/reader/state.h"

/* Starts the read, or opens its shard first, or parks the read. */
void reader_admit(struct reader *reader, struct read *read);
/* Admits the reads that begin again. */
void reader_admit_again(struct reader *reader);
/* Admits parked reads while there is room. */
void reader_unpark(struct reader *reader);

#endif
