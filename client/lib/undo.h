/* Reverting an edit that another rank could not carry out. */
#ifndef TOKEND_UNDO_H
#define TOKEND_UNDO_H

#include "client/lib/handle.h"

/* Saves the state before an edit, for tokend_undo(). Returns 0 or EMEMORY. */
int undo_prepare(struct tokend *t);
/* After undo_prepare(), before another ring is adopted: keeps the current ring and its session. */
void undo_keep_mapping(struct tokend *t);
/* Frees the saved state, ring and session. */
void undo_forget(struct tokend *t);

#endif
