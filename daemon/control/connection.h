/*
 * Connections: the sockets of clients, packets in and out, and the end of the process at the other
 * end. What a packet asks for is not known here: a connection reports events to its owner.
 */
#ifndef TOKEND_CONNECTION_H
#define TOKEND_CONNECTION_H

#include "daemon/control/pace.h"
#include "daemon/control/quota.h"
#include "proto/fault.h"
#include "proto/wire.h"

#include <sys/socket.h>
#include <uv.h>

struct connection;
struct control;
struct errand;
struct request;
struct session;

/* All on the loop. A handler may close the connection; it is freed later, by the loop. */
struct connection_events {
	/* A message. What @w borrows is valid until the handler returns. */
	void (*on_packet)(struct connection *c, const struct wire *w);
	/* A wake-up: a packet of one byte. */
	void (*on_wake)(struct connection *c);
	/* Its process has ended. Packets that it sent before still follow. */
	void (*on_process_end)(struct connection *c);
	/* It is closing: nothing more is sent or received. Called once. */
	void (*on_closed)(struct connection *c);
};

/* All connections of the daemon. */
struct connections {
	uv_loop_t *loop;
	struct control *control; /* the owner's, for its event handlers */
	const struct connection_events *events;
	struct paces paces;
	uv_timer_t pace; /* runs while connections wait for their turn */
	struct connection *first;
	unsigned n;			   /* length of that list */
	char incoming[LIMIT_PACKET_BYTES]; /* the packet being read; messages borrow from it */
	char outgoing[LIMIT_PACKET_BYTES];
};

struct connection {
	struct connections *all;
	struct connection *next, *before;
	int fd;
	pid_t pid; /* 0: of a PID namespace that we cannot see */
	uid_t uid;
	uv_poll_t poll;
	uv_poll_t process; /* the peer's pidfd, if it could be had */
	int pidfd;
	unsigned handles; /* still open in libuv */
	unsigned jobs;	  /* of it in libuv's pool: it is not freed before they are back */
	bool closing;
	struct pace_member member;
	struct quota *quota; /* of its user; NULL: that may not connect */
	uint64_t since_ms;   /* of its last message */

	/* Of its owner, and not used by connection.c, except that it is not freed while it has a
	 * session. */
	struct control *control;
	bool greeted;
	char host[LIMIT_NAME_BYTES + 1];
	uint64_t token; /* of its process, random, from its hello; 0: it sent none */
	struct session *session;
	struct errand *errand;	 /* what it waits for from state_dir, or NULL */
	struct request *request; /* whose answers it waits for, or NULL */
};

/* @all: with its loop, control and events set. */
void connections_init(struct connections *all);
/* Closes the timer; every connection is closed already. */
void connections_stop(struct connections *all);
void connections_free(struct connections *all);

/*
 * Takes over the accepted socket @fd of @peer, which has used @begin_ns of this thread's CPU time.
 * NULL: out of memory, or its user has no credit now and it has left already; then @fd is closed.
 * Call connection_start() once it may stay.
 */
struct connection *connection_new(
	struct connections *all, int fd, const struct ucred *peer, uint64_t begin_ns);
/* Begins to receive, at once or when there is credit. True: the latter. */
bool connection_start(struct connection *c, uint64_t used_ns);

/*
 * Sends a message. @serial: of the query that it answers; 0: none, or the query had none. A client
 * that does not read its replies is closed.
 */
void connection_send(struct connection *c, uint64_t serial, struct wire *w);
/* The same, with descriptors. */
void connection_send_fds(
	struct connection *c, uint64_t serial, struct wire *w, const int *fds, unsigned n);
/* Answers with an error and stays open. */
void connection_error(struct connection *c, uint64_t serial, const struct fault *fault);
/* Logs and sends an error, and closes. */
void connection_refuse(struct connection *c, uint64_t serial, const struct fault *fault);

void connection_close(struct connection *c);
/* Frees it if nothing of it is left. Call it after anything that may have been the last. */
void connection_settle(struct connection *c);
/* Charges CPU time that a job has used for it. */
void connection_charge(struct connection *c, uint64_t used_ns);

/* Asserts what holds between turns of the loop. */
void connections_check(const struct connections *all);

static inline uint64_t connection_now(const struct connection *c)
{
	return uv_now(c->all->loop);
}

#endif
