/*
 * Accepts new clients. Refuses a client whose user may not connect, or for which no connection is
 * left. When the process is out of file descriptors, a spare one is closed, so that the client can
 * be accepted and told why. All on the loop.
 */
#ifndef TOKEND_ACCEPT_H
#define TOKEND_ACCEPT_H

#include "daemon/config/config.h"
#include "daemon/control/connection.h"

struct acceptor {
	struct connections *connections;
	const struct config *config;
	struct users *users;
	int fd; /* the listening socket; not owned */
	uv_poll_t poll;
	uv_timer_t again; /* ends a pause in accepting */
	int spare_fd;	  /* closed when descriptors run out; -1: none */
};

/* May the user connect? */
bool acceptor_allows(const struct acceptor *acceptor, uid_t uid);
/* Begins to accept. The caller has set the first four members. */
void acceptor_start(struct acceptor *acceptor);
/* Call once a second: accepts again if descriptors have become free. */
void acceptor_clock(struct acceptor *acceptor);
/* Stops accepting. The libuv handles close during the next turns of the loop. */
void acceptor_stop(struct acceptor *acceptor);

#endif
