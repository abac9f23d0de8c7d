/* The position of a session: cursors taken and committed. */
#ifndef TOKEND_POSITION_H
#define TOKEND_POSITION_H

#include "client/lib/handle.h"

/* Returns 0 if all invariants hold: origin ≤ committed ≤ taken ≤ end, the rings' counters, the
 * grids. Otherwise handle_broken(). Called at attach, after each seek and before the handle sleeps.
 */
int position_check(struct tokend *t);
/* The cursor at @position, which origin covers. It borrows from origin. */
struct cursor position_cursor(const struct tokend *t, uint64_t position);
/* Starts at @origin, which the handle then owns, on the ring that was adopted for it. */
void position_start(struct tokend *t, const struct cursor *origin, const struct target *target);
/* Sets rank, world and micro-batch, on the ring that was adopted for them. */
void position_set_target(struct tokend *t, const struct target *target);
/* Replaces the origin; the handle then owns @origin. */
void position_set_origin(struct tokend *t, const struct cursor *origin);
/* Reserves memory for one more grid. */
bool position_make_room(struct tokend *t);
/* Begins a grid at @start, in the reserved memory. */
void position_add_grid(struct tokend *t, uint64_t start);

#endif
