/*
 * An errand: a job of the keeper that a connection waits for. The connection may leave before it is
 * done, and is told after KEEPER_DEADLINE_MS that state_dir does not answer; the job goes on
 * without it.
 */
#ifndef TOKEND_ERRAND_H
#define TOKEND_ERRAND_H

#include "daemon/control/keeper.h"

struct connection;
struct server;

struct errand {
	struct keeper_job job;	       /* first: done() gets a pointer to it */
	struct connection *connection; /* NULL: nobody waits any more */
};

/* Gives the job, whose work and done are set, to the keeper. One at a time for each connection. */
void errand_send(struct connection *c, struct errand *errand);
/* In done(): the connection that waits, or NULL. */
struct connection *errand_back(struct errand *errand);
/* The connection closes, or was answered. */
void errand_forget(struct connection *c);
/* Once a second for each connection: ends a wait that takes too long. */
void errand_clock(struct connection *c);
/* Once a second: says when state_dir does not answer, and when it does again. */
void errand_watch(struct server *server);

#endif
