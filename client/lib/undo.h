/* Taking an edit back, for jobs where not every rank could carry it out. */
#ifndef TOKEND_UNDO_H
#define TOKEND_UNDO_H

#include "client/lib/handle.h"

/* Keeps where we are, for tokend_undo() of the edit that follows. 0, or EMEMORY. */
int undo_prepare(struct tokend *t);
/* After undo_prepare(), the edit goes to another ring: keeps the present one and its session. The
 * next one to be adopted takes their place. */
void undo_keep_mapping(struct tokend *t);
/* What was kept is not needed any more. */
void undo_forget(struct tokend *t);

#endif
