/*
 * Where a daemon listens and keeps its state, and where trainers and tokctl look for both: one list
 * for all, in this order.
 *
 *   socket   --socket, or a client's socket=
 *            $TOKEND_SOCKET
 *            socket: of the config
 *            $XDG_RUNTIME_DIR/tokend/tokend.sock
 *            /tmp/tokend-UID/tokend.sock
 *            /run/tokend/tokend.sock
 *
 *   state    state_dir: of the config; otherwise $STATE_DIRECTORY; otherwise /var/lib/tokend
 *            $XDG_STATE_HOME/tokend/HASH, otherwise ~/.local/state/tokend/HASH (of the config)
 *
 * A socket that somebody named, one of the first three, is the only place. Of the others a daemon
 * takes /run/tokend/tokend.sock if it may, otherwise the first that it may create. A client takes
 * the first at which its own user, or root, listens. Private daemons listen next to the user's two
 * sockets, under names made from their configs.
 */
#ifndef TOKEND_PLACE_H
#define TOKEND_PLACE_H

#include "proto/wire.h"

#define PLACE_STATE_DIR "/var/lib/tokend" /* the default */
/* The tag, and the file in a run's directory, of the cursor of its last attach with other mixes. */
#define PLACE_RUN_TAG	 ".run"
#define PLACE_RUN_CURSOR PLACE_RUN_TAG ".cursor"

enum place_from {
	PLACE_OPTION,
	PLACE_ENVIRONMENT,
	PLACE_CONFIG,
	PLACE_OWN,     /* in a directory of the user's daemons */
	PLACE_PRIVATE, /* the same, of a private daemon; not in the list */
	PLACE_DEFAULT,
};

/* NULL or "": not set. */
struct place_setting {
	const char *option, *environment, *config; /* sockets */
	const char *runtime;			   /* $XDG_RUNTIME_DIR */
	uint64_t uid;
};

enum { PLACES = 3 };

struct places {
	unsigned n;
	struct place {
		enum place_from from;
		const char *path; /* borrowed from the setting, or in `own`, or a constant */
	} place[PLACES];
	char own[2][WIRE_SOCKET_BYTES];
};

/* Lists the sockets in order. @places must not be moved afterwards. */
void places_list(struct places *places, const struct place_setting *setting);
/*
 * Writes the path of @name in the directory of a user's daemons: @runtime/tokend/NAME, or
 * /tmp/tokend-UID/NAME if @runtime is NULL. False: it is too long for a socket, or @runtime is not
 * absolute.
 */
bool place_own(const char *runtime, uint64_t uid, const char *name, char path[WIRE_SOCKET_BYTES]);

enum { PLACE_STATES = 2, PLACE_STATE_BYTES = 4096 };

/* NULL or "": not set. */
struct place_state_setting {
	const char *config;	       /* state_dir: */
	const char *given;	       /* $STATE_DIRECTORY, a list with colons */
	const char *state_home, *home; /* $XDG_STATE_HOME, $HOME */
	uint64_t config_hash;
};

/* Writes the directory number @i of the list: 0, or 1, the user's. False: it does not exist, or is
 * too long. */
bool place_state(
	const struct place_state_setting *setting, unsigned i, char path[PLACE_STATE_BYTES]);

#endif
