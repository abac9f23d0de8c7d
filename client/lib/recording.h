/* The record of a session: the batches that it takes, in the format of proto/record.h. */
#ifndef TOKEND_RECORDING_H
#define TOKEND_RECORDING_H

#include "client/lib/handle.h"

/* Records @rows rows before they are taken; the session is then at @next. t->record must not be
 * NULL. Returns 0, or an error: nothing was written. */
int recording_rows(struct tokend *t, const struct tokend_row *row, uint32_t rows,
	const void *tokens, size_t row_bytes, uint64_t next);
/* Notes a seek, an undo (moved) or a requested skip (skipped), at once or with the next row. After
 * an error the next row tries again. */
int recording_moved(struct tokend *t);
int recording_skipped(struct tokend *t);
/* The session has another origin: with other mixes, the next row has a beginning of its own. */
void recording_origin(struct tokend *t);
/* Writes the batches up to @next, before they are committed. */
int recording_commit(struct tokend *t, uint64_t next);
/* Drops the entries that are not committed: the session moves, and they never will be. */
void recording_drop(struct tokend *t);
/* Before a seek. @again: it goes to the beginning of another pass. */
void recording_pass(struct tokend *t, bool again);
/* Ends the record. @ours: false in a forked child, which only frees memory. */
void recording_end(struct tokend *t, bool ours);

#endif
