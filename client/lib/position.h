/* Where a session is in the order: the cursor taken, the one committed. */
#ifndef TOKEND_POSITION_H
#define TOKEND_POSITION_H

#include "client/lib/attach.h"

/* 0 if all invariants hold: origin ≤ committed ≤ taken ≤ end, the counters of the rings, the grids.
 * Otherwise handle_broken(). Called at attach, after each seek and before the handle sleeps. */
int position_check(struct tokend *t);
/* The cursor at @position, which origin covers. NULL: handle_error(). Valid until the next call. */
const struct cursor *position_cursor(struct tokend *t, uint64_t position);
/* Begins at a cursor, which becomes the handle's, on the ring that was adopted for it. */
void position_start(struct tokend *t, const struct cursor *origin, const struct target *target);
/* As another rank, or with other batches, on the ring that was adopted for it. */
void position_set_target(struct tokend *t, const struct target *target);
/* @origin becomes the handle's. */
void position_set_origin(struct tokend *t, const struct cursor *origin);
/* Room for another grid. */
bool position_make_room(struct tokend *t);
/* Begins a grid at @start, in that room. */
void position_add_grid(struct tokend *t, uint64_t start);

#endif
