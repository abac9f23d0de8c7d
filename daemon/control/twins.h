/*
 * Twins: sessions of one rank, run and peer from two processes. Each takes the rank's rows, so rows
 * are taken twice. That happens with two plain processes that both are rank 0 of 1, or with a
 * trainer that is started again while the old one lives.
 *
 * Both are warned once they have been there together for a while: ranks that change places meet for
 * a moment. A strict session is refused as long as the other process lives.
 */
#ifndef TOKEND_TWINS_H
#define TOKEND_TWINS_H

#include "daemon/control/session.h"
#include "proto/fault.h"

/* False (FAULT_ATTACH, passing): @s is strict, and another process reads for its rank. */
bool twins_allow(const struct session *s, struct fault *fault);
/* @s was fed: it may take the place of another session of its process. */
void twins_join(struct session *s);
/* Once a second: warns both. May close the connection. */
void twins_clock(struct session *s, uint64_t now_ms);

#endif
