/* The numbers of a status as JSON: `tokctl status --json`, and status.json at the metrics port. */
#ifndef TOKEND_STATUS_MEMBERS_H
#define TOKEND_STATUS_MEMBERS_H

#include "proto/wire.h"

struct status_member {
	enum wire_key key;
	const char *name;
};

/* Of a session, and of the daemon. A NULL name ends each list. */
extern const struct status_member status_session_members[], status_daemon_members[];

#endif
