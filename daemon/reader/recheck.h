/*
 * Token ids that may not be served: above the stream's vocab, or negative. They are looked for
 * where the tokens lie, in the client's slot, which the client may write to meanwhile. So what is
 * seen there is a suspicion at most, which costs a second reading into memory that no client can
 * write to, and only that decides.
 */
#ifndef TOKEND_RECHECK_H
#define TOKEND_RECHECK_H

#include "daemon/reader/files.h"

/* Are all tokens that lie at read->to below the dataset's limit? Costs no I/O. */
bool recheck_passes(const struct reader_read *read);
/*
 * Reads the tokens of @read again from @file, looks at them in private memory, and copies them to
 * read->to. False: as shard_read() says; ERANGE: @why names the token and its value. Blocks: for
 * the pool.
 */
bool recheck_read(const struct file *file, const struct reader_read *read, int *error, char *why,
	size_t why_bytes);

#endif
