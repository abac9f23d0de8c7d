/*
 * The part of a read that may wait for a disk: tokens of shards that are not plain, a second look
 * at tokens that may not be served, and annotations that come from files. Runs in threads of the
 * pool, except where a function says otherwise, and knows only the read and its file.
 */
#ifndef TOKEND_READER_DECODE_H
#define TOKEND_READER_DECODE_H

#include "daemon/reader/state.h"

/* Do annotations of the read come from files? Then they are made where its tokens are decoded. Any
 * thread. */
bool decode_needs_files(const struct read *read);
/* Decodes a FOUND read's tokens if that takes no waiting. False: decode_read() must. For the data
 * thread. */
bool decode_try(struct read *read);
/* Writes the annotations of tokens that are there. Does not block if the file has no open shard.
 * False: read->fault. */
bool decode_annotations(struct read *read);

/* For io_work.call, of a read's work; 0, or -1 with read->fault. */
int64_t decode_read(struct io_work *work);  /* tokens, then as decode_check() */
int64_t decode_check(struct io_work *work); /* tokens that are there may be served; annotations */

#endif
