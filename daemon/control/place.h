/*
 * Which of the places of proto/place.h a daemon uses. Users other than root may not write to
 * /run/tokend and /var/lib/tokend. Their daemons use directories of the user, and log them.
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

/*
 * Replaces config->state_dir: by $STATE_DIRECTORY (from systemd) if the config names none; by a
 * directory of the user, if this user may not write there and the config names none or @private is
 * set. @private: embedded mode. False: out of memory.
 */
bool place_state_dir(struct config *config, bool private);

#endif
