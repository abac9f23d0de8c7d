/* Status: one packet per session, at most a page of them, then one with the totals. */
#ifndef TOKEND_STATUS_H
#define TOKEND_STATUS_H

#include "daemon/control/connection.h"

/* Handles a status message. */
void status_list(struct connection *c, const struct wire *w);

#endif
