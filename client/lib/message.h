/* Messages of the daemon that are not replies: errors, warnings, and invalid packets. */
#ifndef TOKEND_MESSAGE_H
#define TOKEND_MESSAGE_H

#include "client/lib/connect.h"
#include "client/lib/handle.h"

/* Makes the error in t->packet the handle's last failure, and returns it. */
int message_refused(struct tokend *t);
/* Fails with EPROTOCOL; @what is wrong with the peer. */
int message_unknown(struct tokend *t, const char *what);
/* The same for t->packet->fault. */
int message_invalid(struct tokend *t);
/* If the message in t->packet is a warning, passes it to the callback and returns true. */
bool message_warning(struct tokend *t);
/* Before a session ends: passes on the warnings in the socket and drops all other messages. */
void message_warnings(struct tokend *t);

#endif
