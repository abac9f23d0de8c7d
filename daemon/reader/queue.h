/*
 * From a queued read to its file. Reads wait here for an entry of the table of open shards, each
 * stream's in a queue of their own, so nobody waits for another stream's reads.
 */
#ifndef TOKEND_READER_QUEUE_H
#define TOKEND_READER_QUEUE_H

#include "daemon/reader/state.h"

/* Starts the read, has its shard opened, or parks it. */
void reader_admit(struct reader *reader, struct read *read);
/* Admits those that begin again. */
void reader_admit_again(struct reader *reader);
/* Admits parked reads, as far as there is room. */
void reader_unpark(struct reader *reader);

#endif
