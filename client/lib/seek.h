/*
 * Moving to another position: edit the cursor, then attach at it. The old ring is kept until the
 * new one is mapped, so a failure changes nothing.
 */
#ifndef TOKEND_SEEK_H
#define TOKEND_SEEK_H

#include "client/lib/handle.h"

/* Attaches at @edited with the same rank, world and micro-batch. Returns 0 or an error. */
int seek_edited(struct tokend *t, const struct cursor *edited);
/* Skips @samples from the position taken on. *@to: the new position. Returns 0 or an error. */
int seek_skip(struct tokend *t, uint64_t samples, uint64_t *to);

#endif
