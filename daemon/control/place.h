/*
 * Which of the sockets of proto/place.h a daemon listens at. Users other than root may not write to
 * /run/tokend. Their daemons use a directory of the user, and log it.
 */
#ifndef TOKEND_CONTROL_PLACE_H
#define TOKEND_CONTROL_PLACE_H

#include "daemon/config/config.h"
#include "proto/fault.h"
#include "proto/wire.h"

/* Returns the socket to listen at: $TOKEND_SOCKET, the config's, WIRE_SOCKET, or @path, which it
 * fills in and whose directory it creates. NULL with @fault: it could not. */
const char *place_listen(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault);

#endif
