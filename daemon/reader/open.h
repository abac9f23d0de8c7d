/*
 * From a path to an open file that is known to be the shard that was listed. Opening it, and
 * reading what a shard that is not plain says of itself, may hang: both run in the pool.
 */
#ifndef TOKEND_READER_OPEN_H
#define TOKEND_READER_OPEN_H

#include "daemon/reader/state.h"

/* Opens the CLOSED @file. Then its waiting reads are started, or fail with it. */
void file_begin(struct reader *reader, struct file *file);

#endif
