/*
 * Finds the daemon of a command, at the places of proto/place.h. Errors are printed, with each
 * place that was tried.
 */
#ifndef TOKEND_CTL_SOCKET_H
#define TOKEND_CTL_SOCKET_H

#include "client/lib/link.h"
#include "daemon/config/config.h"

enum { CTL_CANDIDATES = 2 * PLACES + 2 };

/* Where the daemon of a config may listen, in order. Not to be moved. */
struct ctl_candidates {
	struct place place[CTL_CANDIDATES];
	unsigned n;
	struct places named, unnamed; /* by the environment; without it */
	char private[2][WIRE_SOCKET_BYTES];
};

/* Sockets of daemons that listen. */
struct ctl_sockets {
	struct place *place; /* [n]; the paths are owned */
	unsigned n;
};

/*
 * The path of the socket: @option, otherwise $TOKEND_SOCKET, otherwise the socket of the config
 * file @config, otherwise the only daemon that this user's commands find, otherwise the default one
 * of several. With @config a daemon that serves this file is preferred, also a private one. @option
 * and @config may be NULL. The caller frees it. NULL after an error was printed.
 */
char *ctl_socket(const char *option, const char *config);
/* Lists the candidates, without private daemons. They borrow from @config, which may be NULL. */
void ctl_candidates(struct ctl_candidates *c, const struct config *config);
/* True if the command line or the environment names a daemon. Otherwise it may mean any that runs
 * here. */
bool ctl_socket_named(const char *option, const char *config);
/* Finds all daemons at the default places, and private ones: there is at least one. False after an
 * error. The caller frees them. */
bool ctl_sockets_find(struct ctl_sockets *sockets);
void ctl_sockets_free(struct ctl_sockets *sockets);

#endif
