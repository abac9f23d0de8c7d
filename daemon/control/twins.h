/*
 * Twins are sessions of two processes for the same run, rank and peer. Both take the same samples.
 * It happens if two independent processes are both rank 0 of 1, or if a trainer is restarted while
 * the old one lives.
 *
 * Both are warned when the second attaches. If it got there by a seek, they are warned a second or
 * two later: ranks that exchange their places meet for a moment. A strict session is refused while
 * the other process lives. All on the loop.
 */
#ifndef TOKEND_TWINS_H
#define TOKEND_TWINS_H

#include "daemon/control/session.h"
#include "proto/fault.h"

/* May @s attach? False (FAULT_ATTACH, passing): it is strict, and another process reads for its
 * rank. */
bool twins_allow(const struct session *s, struct fault *fault);
/* @s is fed now, and inherits the warnings of the session that it replaces. */
void twins_join(struct session *s);
/* The client of @s got its feed. May close the connection. */
void twins_joined(struct session *s);
/* Call once a second. May close the connection. */
void twins_clock(struct session *s, uint64_t now_ms);

#endif
