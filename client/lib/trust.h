/*
 * Whether the process that answers at a socket may be our daemon.
 */
#ifndef TOKEND_TRUST_H
#define TOKEND_TRUST_H

#include <stdbool.h>
#include <stddef.h>

/*
 * May the process that listens at @path, to which @fd is connected, be our daemon? False: who it is
 * and what to do, in one line in @why.
 */
bool trust_peer(int fd, const char *path, char *why, size_t why_bytes);

#endif
