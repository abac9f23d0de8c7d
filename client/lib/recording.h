/* A session writes down what it takes, in the format of record.h. */
#ifndef TOKEND_RECORDING_H
#define TOKEND_RECORDING_H

#include "client/lib/handle.h"

/* Records @rows that are about to be handed out, after which the session is at @next. There is a
 * record. An error: nothing of it is in the file. */
int recording_rows(struct tokend *t, const struct tokend_row *row, uint32_t rows,
	const void *tokens, size_t row_bytes, uint64_t next);
/* After a seek, an undo, or a skip by request: the record, if there is one, says so, now or with
 * the next row. What fails here is tried again with that. */
int recording_moved(struct tokend *t);
int recording_skipped(struct tokend *t);
/* Before all up to @next is committed: what was taken of it is recorded. */
int recording_commit(struct tokend *t, uint64_t next);
/* The session goes elsewhere, and what is not committed never will be. */
void recording_drop(struct tokend *t);
/* Before a seek: does it go to the beginning of another pass? */
void recording_pass(struct tokend *t, bool again);
/* @ours: not in a child. */
void recording_end(struct tokend *t, bool ours);

#endif
