/* Maps each message to its handler. A new message is one file, and one line in dispatch.c. */
#ifndef TOKEND_DISPATCH_H
#define TOKEND_DISPATCH_H

#include "daemon/control/connection.h"

extern const struct connection_events dispatch_events;

#endif
