/*
 * From an open file to the slot: the way of a read's bytes. See read.c.
 */
#ifndef TOKEND_READER_READ_H
#define TOKEND_READER_READ_H

#include "daemon/reader/state.h"

/* Starts a read whose file is open. */
void read_start(struct reader *reader, struct read *read);
/* Decodes all reads that are FOUND, here or in the pool. */
void reader_try_found(struct reader *reader);

/* Bytes of the window. */
uint64_t window_bytes(const struct reader_read *window);

#endif
