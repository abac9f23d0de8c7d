/*
 * New clients: accepts them, and refuses those that may not connect or for which no connection is
 * left. When the process is out of descriptors it gives up a spare one
 * to be able to say so.
 */
#ifndef TOKEND_ACCEPT_H
#define TOKEND_ACCEPT_H

#include "daemon/config/config.h"
#include "daemon/control/connection.h"

struct acceptor {
	struct connections *connections;
	const struct config *config;
	struct quotas *quotas;
	unsigned most; /* connections: the descriptors of more are kept for shards */
	int fd;	       /* listens; not owned */
	uv_poll_t poll;
	uv_timer_t again; /* runs while those who come have no credit */
	int spare_fd;
};

/* @acceptor: with its first five members set. */
void acceptor_start(struct acceptor *acceptor);
/* Once a second: descriptors may have come back since we ran out of them. */
void acceptor_clock(struct acceptor *acceptor);
/* No more clients. Its handles close with the loop's next turns. */
void acceptor_stop(struct acceptor *acceptor);

#endif
