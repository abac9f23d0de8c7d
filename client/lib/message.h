/* What a daemon says that is not a reply: errors, warnings, and what is no message of ours. */
#ifndef TOKEND_MESSAGE_H
#define TOKEND_MESSAGE_H

#include "client/lib/connect.h"
#include "client/lib/handle.h"

/* The error in t->packet becomes the handle's. */
int message_refused(struct tokend *t);
/* EPROTOCOL: @what is wrong with what answers. */
int message_unknown(struct tokend *t, const char *what);
/* The same for t->packet->fault. */
int message_invalid(struct tokend *t);
/* If the message in t->packet is a warning, it is passed on, and the result is true. */
bool message_warning(struct tokend *t);
/* The session is about to be left: warnings that wait are passed on, everything else is dropped. */
void message_warnings(struct tokend *t);

#endif
