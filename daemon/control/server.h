/*
 * The control thread: one libuv loop with the socket, signals and timers. It holds no truth: a
 * session is what its client said at attach, and ends with its connection. The loop makes no
 * file-system call: libuv's pool makes them.
 */
#ifndef TOKEND_SERVER_H
#define TOKEND_SERVER_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/control/reload.h"
#include "daemon/reader/reader.h"

struct server_options {
	const struct catalog *catalog;
	struct listener *listener;	 /* open; server_run() closes it */
	struct reader *reader;		 /* server_run() closes it */
	struct stores *stores;		 /* or NULL */
	unsigned store_queues;		 /* of the engine for reads from them */
	unsigned store_depth;		 /* of each */
	unsigned depth;			 /* reads in flight at most */
	unsigned connections;		 /* clients at most; other descriptors are for shards */
	struct cgroup *cgroup;		 /* or NULL */
	uint64_t staging_bytes;		 /* of the reader, counted in memory: */
	const _Atomic uint64_t *rereads; /* damaged reads that were intact when repeated */
	struct reload_past past;	 /* of this process; its listener is not used */
	char **argv;			 /* for a reload */
	unsigned linger_s;		 /* exit after so long without a session; 0: never */
};

/* Serves until SIGTERM or SIGINT. Returns the exit code; failures are logged. */
int server_run(const struct server_options *options);

#endif
