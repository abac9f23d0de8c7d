/*
 * Whether the process that answers at a socket may be our daemon.
 */
#ifndef TOKEND_TRUST_H
#define TOKEND_TRUST_H

#include "proto/fault.h"

/* May the process that listens at @path, to which @fd is connected, be our daemon? On failure
 * returns false, and @fault (FAULT_PERMISSION) says who it is and what to do. */
bool trust_peer(int fd, const char *path, struct fault *fault);

#endif
