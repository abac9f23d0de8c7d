/* A new request: finds its run, and checks that the operator may change it. */
#ifndef TOKEND_REQUEST_NEW_H
#define TOKEND_REQUEST_NEW_H

#include "daemon/control/connection.h"

/* Handles a request message. */
void request_new(struct connection *c, const struct wire *w);

#endif
