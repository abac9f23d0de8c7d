/* Warnings about a batch that does not come, although the daemon is connected. */
#ifndef TOKEND_SLOW_H
#define TOKEND_SLOW_H

#include "client/lib/warn.h"

/* Call at the begin of a wait, with *w 0, and again when a lost daemon is back. Soon after another
 * slow batch, the first warning comes later. */
void slow_begin(const struct tokend *t, struct warnings *w);
/* Warns if it is due, with the shards that the daemon reads. Returns 0 or EAGAIN. */
int slow_warn(struct tokend *t, struct warnings *w);
/* The time at which the wait is too long, in ns. */
int64_t slow_until(const struct tokend *t, const struct warnings *w);
/* Returns 0, or EWAIT after that time. */
int slow_limit(struct tokend *t, const struct warnings *w);
/* The batch has come. Returns 0 or EAGAIN. */
int slow_over(struct tokend *t, struct warnings *w);

#endif
