/* Which function carries out which message: to add a message is one file and one line here. */
#ifndef TOKEND_DISPATCH_H
#define TOKEND_DISPATCH_H

#include "daemon/control/connection.h"

extern const struct connection_events dispatch_events;

#endif
