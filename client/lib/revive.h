/* A daemon that was lost. */
#ifndef TOKEND_REVIVE_H
#define TOKEND_REVIVE_H

#include "client/lib/handle.h"

/* Goes on looking for a daemon, and attaches where we are. 1, 0 if !@wait and not yet, or an error,
 * which is latched unless it is EAGAIN. */
int revive(struct tokend *t, bool wait);

#endif
