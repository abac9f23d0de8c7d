/* Attaching again after the daemon was lost. */
#ifndef TOKEND_REVIVE_H
#define TOKEND_REVIVE_H

#include "client/lib/handle.h"

/* Continues the search for a daemon and attaches at the position taken. Returns 1; 0 if !@wait and
 * none was found yet; or an error, latched unless it is EAGAIN. */
int revive(struct tokend *t, bool wait);

#endif
