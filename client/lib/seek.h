/*
 * To another position. A change is always the same: edit the cursor, then attach at it. The old
 * ring is given up only when the new one is here, so a refusal leaves everything as it was.
 */
#ifndef TOKEND_SEEK_H
#define TOKEND_SEEK_H

#include "client/lib/handle.h"

/* Attaches at @edited, as the rank that we are. 0, or an error. */
int seek_edited(struct tokend *t, const struct cursor *edited);
/* Goes @samples further than what is taken. *@to: the position it comes to. 0, or an error. */
int seek_skip(struct tokend *t, uint64_t samples, uint64_t *to);

#endif
