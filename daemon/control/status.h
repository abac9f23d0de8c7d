/* Status: one packet per session, at most a page of them, then one with the totals. */
#ifndef TOKEND_STATUS_H
#define TOKEND_STATUS_H

#include "daemon/control/connection.h"

struct control;
struct session;

/* Buffers for texts that a message borrows. */
struct status_texts {
	char shard[LIMIT_TEXT_BYTES], wait[LIMIT_TEXT_BYTES];
};

/* Set the keys of a session, and of the daemon. */
void status_session(
	const struct session *s, uint64_t now_ms, struct wire *w, struct status_texts *texts);
void status_daemon(const struct control *control, struct wire *w, struct status_texts *texts);
/* Handles a status message. */
void status_list(struct connection *c, const struct wire *w);

/* Handles a streams message: the datasets with their digests. */
void status_streams(struct connection *c, const struct wire *w);

#endif
