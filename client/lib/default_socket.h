/* Where the daemon is looked for if nobody names its socket. */
#ifndef TOKEND_DEFAULT_SOCKET_H
#define TOKEND_DEFAULT_SOCKET_H

#include "proto/wire.h"

/*
 * The first of: $TOKEND_SOCKET; the socket of a daemon that this user started without root
 * (wire_own_socket), if it exists in a directory that no one else may write to, and it listens or
 * nobody does at WIRE_SOCKET; WIRE_SOCKET. Returns @path, the environment's text, or a constant.
 */
const char *default_socket(char path[WIRE_SOCKET_BYTES]);

#endif
