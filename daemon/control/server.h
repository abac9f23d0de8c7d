/*
 * The control thread: one libuv loop with the socket, signals and timers. It holds no truth: every
 * session is what its client said at attach, and dies with its connection. The loop makes no
 * file-system call: those on state_dir are the keeper's, others run in libuv's pool.
 *
 * Its files call downwards in this order, and never back:
 *
 *   server.c          the loop: signals, the clock, news from the data thread
 *   accept.c          new clients
 *   metrics.c         what status says, for Prometheus
 *   dispatch.c        which function carries out which message
 *   attach.c          a session begins
 *   snapshot.c        snapshots that a session asks for
 *   status.c          what goes on
 *   request_new.c     an operator's request arrives; request.c: the sessions answer it
 *   session.c         a session's clock and end; session_memory.c: its part of `memory:`
 *   twins.c           two processes that read for one rank
 *   errand.c          a connection waits for the keeper
 *   connection.c      one client's socket: packets in and out, and when it dies
 *   runs.c            whose each run is
 *   pace.c, quota.c   how much of the control thread, memory and state_dir a user may take
 *   hang.c            storage that does not answer
 *   data_thread.c          the data thread
 *   keeper.c          the thread that makes all calls on state_dir
 *   mix_log.c, snapshot_file.c, run_dir.c, durable.c    what lies there
 */
#ifndef TOKEND_SERVER_H
#define TOKEND_SERVER_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/control/listen.h"
#include "daemon/control/rereads.h"
#include "daemon/reader/reader.h"

struct server_options {
	const struct catalog *catalog;
	struct listener *listener; /* open; closed at the end */
	struct reader *reader;	   /* taken over */
	unsigned depth;
	unsigned connections;	/* at most so many: the descriptors of more are kept for shards */
	struct cgroup *cgroup;	/* or NULL */
	uint64_t staging_bytes; /* of the reader, counted in memory: */
	const struct rereads *rereads;
	unsigned linger_s; /* leave when there was no session for so long; 0: never */
};

/* Serves until SIGTERM or SIGINT. The exit code; reasons go to the log. */
int server_run(const struct server_options *options);

#endif
