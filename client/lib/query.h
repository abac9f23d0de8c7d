/* Queries to the daemon of the session, and their replies. */
#ifndef TOKEND_QUERY_H
#define TOKEND_QUERY_H

#include "client/lib/connect.h"
#include "client/lib/handle.h"

/* Sends @query and waits for its reply, of kind @reply, which is then in t->packet->wire. If the
 * daemon is lost, attaches again and repeats the query. Returns 0 or an error. */
int query(struct tokend *t, const struct wire *query, enum wire_op reply);
/* Reads messages that are not replies. Returns 0, or an error, which is latched. */
int query_listen(struct tokend *t);

#endif
