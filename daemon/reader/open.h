/*
 * Opens a shard and verifies that the file is the one that was listed. Opening it, and reading the
 * header and index of a shard that is not plain, may hang: both run in the pool.
 */
#ifndef TOKEND_READER_OPEN_H
#define TOKEND_READER_OPEN_H

#include "daemon/reader/state.h"

/* Counts the memory of @shard's index as free. Returns @shard, which may be NULL. */
struct shard *index_freed(struct reader *reader, struct shard *shard);
/* Cancels the opening of a file in a store, for which no read waits. */
void opening_cancel(struct reader *reader, struct file *file);
/* Begins to open the CLOSED @file. Its waiting reads start afterwards, or fail with it. */
void file_begin(struct reader *reader, struct file *file);

#endif
