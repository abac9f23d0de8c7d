/* A new request from an operator: which run it is for, and whether this operator may change it. */
#ifndef TOKEND_REQUEST_NEW_H
#define TOKEND_REQUEST_NEW_H

#include "daemon/control/connection.h"

/* Carries out a request message. */
void request_new(struct connection *c, const struct wire *w);

#endif
