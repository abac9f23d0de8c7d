/* The listening socket of the HTTP server. */
#ifndef TOKEND_HTTP_LISTEN_H
#define TOKEND_HTTP_LISTEN_H

#include "proto/fault.h"

/*
 * Returns a TCP socket that listens: @fd, or if that is -1 one at @address, "HOST:PORT" with a
 * numeric host. -1 with @fault, whose code is FAULT_PERMISSION if all networks are forbidden.
 */
int http_listen(const char *address, int fd, struct fault *fault);

#endif
