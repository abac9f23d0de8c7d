/*
 * An errand: a job of the keeper (a call on state_dir, which may hang) that a connection waits for.
 * The connection may close before the job is done. After KEEPER_DEADLINE_MS the client gets an
 * error, and the job continues without it. All on the loop.
 */
#ifndef TOKEND_ERRAND_H
#define TOKEND_ERRAND_H

#include "daemon/control/connection.h"
#include "daemon/control/keeper.h"

struct errand {
	struct keeper_job job; /* first member: done() gets a pointer to it */
	uint64_t serial;       /* of the query to reply to */
	/* Sends the error: the deadline has passed. */
	void (*late)(struct connection *c, const struct errand *errand);
	struct connection *connection; /* NULL: nobody waits */
	struct keeper *keeper;
};

/* Gives the job to the keeper. Its work and done, and late, are set. One per connection at a time.
 */
void errand_send(struct keeper *keeper, struct connection *c, struct errand *errand);
/* Call it in done(). Returns the connection that waits, or NULL. */
struct connection *errand_back(struct errand *errand);
/* The connection closes, or has its reply: nobody waits for its errand. */
void errand_forget(struct connection *c);
/* Call once a second for each connection: ends a wait after the deadline. */
void errand_clock(struct connection *c);

#endif
