/*
 * An attach has three steps. On the loop: all checks that need no waiting. In libuv's pool: the
 * cursor and the ring are made. Back on the loop: the data thread gets the feed, and the client
 * gets the ring's two descriptors. Only an attach at a snapshot reads state_dir, before the second
 * step. A connection is not freed while a job of it is in the pool.
 */
#ifndef TOKEND_ATTACH_H
#define TOKEND_ATTACH_H

#include "daemon/control/connection.h"

/* Handles an attach message. The reply is a feed, or an error after which @c is closed. */
void session_attach(struct connection *c, const struct wire *w);

#endif
