/*
 * Token ids that may not be served: not below the stream's vocab, or negative. They are looked for
 * where the tokens are, in the client's slot, which the client may write to meanwhile. So an id
 * that is seen there is a suspicion at most. The tokens are then read a second time, into memory
 * that no client can write to, and only that decides.
 */
#ifndef TOKEND_RECHECK_H
#define TOKEND_RECHECK_H

#include "daemon/reader/files.h"
#include "daemon/reader/reader.h"

/* Are all tokens at read->to below the dataset's limit? Costs no I/O. */
bool recheck_passes(const struct reader_read *read);
/*
 * Reads the tokens of @read again from @file, looks at them in private memory, and copies them to
 * read->to. False: @fault; FAULT_TOKEN names the token and its value. Blocks: for the pool.
 */
bool recheck_read(const struct file *file, const struct reader_read *read, struct fault *fault);

#endif
