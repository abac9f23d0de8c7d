/*
 * An errand: a job of the keeper (a call on state_dir, which may hang) that a connection waits for.
 * The connection may leave before the job is done. After KEEPER_DEADLINE_MS it is told that
 * state_dir does not answer; the job then goes on without it.
 */
#ifndef TOKEND_ERRAND_H
#define TOKEND_ERRAND_H

#include "daemon/control/connection.h"
#include "daemon/control/keeper.h"

struct errand {
	struct keeper_job job; /* first: done() gets a pointer to it */
	uint64_t serial;       /* of the query that it answers */
	/* It takes too long, and the connection does not wait for it any more: says so. */
	void (*late)(struct connection *c, const struct errand *errand);
	struct connection *connection; /* NULL: nobody waits any more */
	struct keeper *keeper;
};

/* Gives the job, whose work and done are set, to the keeper. One at a time for each connection. */
void errand_send(struct keeper *keeper, struct connection *c, struct errand *errand);
/* In done(): the connection that waits, or NULL. */
struct connection *errand_back(struct errand *errand);
/* The connection closes, or was answered. */
void errand_forget(struct connection *c);
/* Once a second for each connection: ends a wait that takes too long. */
void errand_clock(struct connection *c);

#endif
