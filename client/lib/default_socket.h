/* The socket that is used if the caller names none. */
#ifndef TOKEND_DEFAULT_SOCKET_H
#define TOKEND_DEFAULT_SOCKET_H

#include "proto/wire.h"

/*
 * Returns $TOKEND_SOCKET; otherwise the socket of a daemon that this user started without root
 * (wire_own_socket); otherwise WIRE_SOCKET. The user's own socket counts only if it exists in a
 * directory to which no other user may write. If nobody listens there, a daemon at WIRE_SOCKET is
 * preferred. The result is @path, the environment's text, or a constant.
 */
const char *default_socket(char path[WIRE_SOCKET_BYTES]);

#endif
