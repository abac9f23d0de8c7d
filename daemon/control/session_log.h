/* The log lines about a session. */
#ifndef TOKEND_SESSION_LOG_H
#define TOKEND_SESSION_LOG_H

#include "daemon/control/log.h"
#include "daemon/control/session.h"

/* For log_session() and log_about(). @shard: or NULL. */
struct log_subject session_subject(const struct session *s, const char *shard);
/* The session begins. */
void session_log_attach(const struct session *s);
/* The session that was fed ends. Its feed still exists. */
void session_log_detach(const struct session *s);

#endif
