/*
 * The parts of a read that may wait for a disk: decoding shards that are not plain, rechecking
 * tokens that may not be served, and annotations from files. They run in threads of the pool unless
 * a function says otherwise, and use only the read and its file.
 */
#ifndef TOKEND_READER_DECODE_H
#define TOKEND_READER_DECODE_H

#include "daemon/reader/state.h"

/* Do annotations of the read come from files? Then the pool writes them. Any thread. */
bool decode_needs_files(const struct read *read);
/* Is a FOUND read's window in the file as it is served? Then it needs no decoding. Any thread. */
bool decode_as_is(const struct read *read);
/* Decodes a FOUND read's tokens if that does not block. False: decode_read() must. For the data
 * thread. */
bool decode_try(struct read *read);
/* Writes the annotations of tokens that have been read. Does not block if the file has no open
 * shard. False: read->fault. */
bool decode_annotations(struct read *read);

/* For io_work.call, of a read's work. Return 0, or -1 with read->fault. */
int64_t decode_read(struct io_work *work);  /* decodes the tokens, then does decode_check() */
int64_t decode_fetch(struct io_work *work); /* reads a plain shard in a store, then checks */
int64_t decode_check(struct io_work *work); /* checks tokens that were read; annotates them */

#endif
