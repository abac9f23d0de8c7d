/* Lets the cache of stores know when a session needs pieces, by its order and position. */
#ifndef TOKEND_FOLLOWING_H
#define TOKEND_FOLLOWING_H

#include "daemon/control/session.h"

/* After the session's feed was made, and before it is freed. */
void following_begin(struct session *s);
void following_end(struct session *s);

#endif
