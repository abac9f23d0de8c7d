/* Chooses the daemon and the run of a request. */
#ifndef TOKEND_CTL_RUN_H
#define TOKEND_CTL_RUN_H

#include "client/ctl/online/talk.h"

struct ctl_wanted {
	const char *socket, *config; /* as for ctl_socket() */
	const char *stream;
	const char *run; /* NULL: any */
};

/*
 * Connects to the daemon that @wanted names. If it names none, to the only daemon that has sessions
 * of this stream and run. False after an error: it lists the daemons to choose from.
 */
bool ctl_connect_run(struct ctl_link *l, const struct ctl_wanted *wanted);

#endif
