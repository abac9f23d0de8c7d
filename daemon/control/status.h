/* Status: one packet a session, a page of sessions at a time, then the totals. */
#ifndef TOKEND_STATUS_H
#define TOKEND_STATUS_H

#include "daemon/control/connection.h"

/* Carries out a status message. */
void status_list(struct connection *c, const struct wire *w);

#endif
