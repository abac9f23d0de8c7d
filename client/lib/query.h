/* Queries to the daemon of the session, and their replies. */
#ifndef TOKEND_QUERY_H
#define TOKEND_QUERY_H

#include "client/lib/connect.h"
#include "client/lib/handle.h"

/* Sends @query and waits for its reply, of kind @reply, which is then in t->packet->wire. A lost
 * daemon is looked for, and asked again. 0, or an error. */
int query(struct tokend *t, const struct wire *query, enum wire_op reply);
/* Takes what the daemon said on its own account. 0, or an error that was latched. */
int query_listen(struct tokend *t);

#endif
