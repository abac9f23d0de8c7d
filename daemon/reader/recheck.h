/*
 * Finds token ids that may not be served: negative ones, and those that are not below the stream's
 * vocab. The first check is in the slot, and the client may write to that meanwhile. So an id that
 * is found there is only a suspicion. Then the tokens are read again, into memory that no client
 * can write to, and only the second check counts.
 */
#ifndef TOKEND_RECHECK_H
#define TOKEND_RECHECK_H

#include "daemon/reader/files.h"
#include "daemon/reader/reader.h"

/* Are all tokens at read->to allowed? No I/O. */
bool recheck_passes(const struct reader_read *read);
/*
 * Reads the tokens of @read again from @file (NULL: a plain shard in a store), checks them in
 * private memory, and copies them to read->to. False: @fault, with FAULT_TOKEN for a token that may
 * not be served. Blocks: for the pool.
 */
bool recheck_read(const struct file *file, const struct reader_read *read, struct fault *fault);

#endif
