/*
 * Attaching, in three steps: what needs no waiting is checked on the loop; cursor and ring are made
 * in libuv's pool; back on the loop the data thread gets the feed and the client its two
 * descriptors. Only an attach at a snapshot waits for state_dir, before the second step. A job in
 * the pool holds its connection open until it is back.
 */
#ifndef TOKEND_ATTACH_H
#define TOKEND_ATTACH_H

#include "daemon/control/connection.h"

/* Carries out an attach message. */
void session_attach(struct connection *c, const struct wire *w);

#endif
