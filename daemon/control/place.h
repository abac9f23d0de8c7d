/*
 * Where a daemon listens and keeps its state if its config does not say. Users other than root may
 * write to neither /run/tokend nor /var/lib/tokend. A daemon of such a user takes that user's own
 * directories, where the user's clients look as well (wire_own_socket(), config_user_state_dir()),
 * and logs them.
 */
#ifndef TOKEND_CONTROL_PLACE_H
#define TOKEND_CONTROL_PLACE_H

#include "daemon/config/config.h"
#include "proto/fault.h"
#include "proto/wire.h"

/* The socket to listen at: the config's, WIRE_SOCKET, or @path, whose directory it creates. NULL:
 * it could not. */
const char *place_listen(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault);

/*
 * Replaces config->state_dir where that is not to be used: by $STATE_DIRECTORY (systemd's) if the
 * config names none; by a directory of the user's own if this user may not write there and the
 * config names none, or if @private. Warns if checkpoints will fail. False: out of memory.
 */
bool place_state_dir(struct config *config, bool private);

#endif
