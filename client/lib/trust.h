/*
 * Decides whether the process that listens at a socket may be our daemon.
 */
#ifndef TOKEND_TRUST_H
#define TOKEND_TRUST_H

#include "proto/fault.h"

/* Checks the process that listens at @path, to which @fd is connected. On failure returns false,
 * and
 * @fault (FAULT_PERMISSION) names the user. */
bool trust_peer(int fd, const char *path, struct fault *fault);

#endif
