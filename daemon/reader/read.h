/*
 * Moves a read's bytes from an open file into the slot. See read.c.
 */
#ifndef TOKEND_READER_READ_H
#define TOKEND_READER_READ_H

#include "daemon/reader/state.h"

/* Starts a read whose file is open. */
void read_start(struct reader *reader, struct read *read);
/* Reads or decodes all FOUND reads: at once if that does not block, otherwise in the backend. */
void reader_try_found(struct reader *reader);

/* Fetches the bytes of a plain shard from its store. */
void fetch_start(struct reader *reader, struct read *read);

/* The window's size in bytes. */
uint64_t window_bytes(const struct reader_read *window);

#endif
