/*
 * The sockets of clients: packets in and out, which function handles each message, and the death of
 * the client's process. A handler may close the connection; the loop frees it later. All on the
 * loop.
 */
#ifndef TOKEND_CONNECTION_H
#define TOKEND_CONNECTION_H

#include "daemon/control/listen.h"
#include "daemon/control/log.h"
#include "proto/fault.h"
#include "proto/wire.h"

#include <sys/queue.h>
#include <sys/socket.h>
#include <uv.h>

struct connection;
struct control;
struct request;
struct session;
struct state_job;

/* All connections of the daemon. */
struct connections {
	uv_loop_t *loop;
	struct control *control;			  /* the owner's, for its event handlers */
	TAILQ_HEAD(connection_queue, connection) waiting; /* their users have no tokens */
	unsigned waiting_n;				  /* length of that queue */
	uv_timer_t again;				  /* runs meanwhile */
	struct connection *first;
	unsigned n;			   /* length of that list */
	char incoming[LIMIT_PACKET_BYTES]; /* the packet that is being handled */
	char outgoing[LIMIT_PACKET_BYTES];
};

struct connection {
	struct connections *all;
	struct connection *next, *before;
	int fd;
	pid_t pid; /* 0: in a PID namespace that we cannot see */
	uid_t uid;
	uv_poll_t poll;
	uv_poll_t process; /* polls pidfd, if there is one */
	int pidfd;	   /* the client's process; -1: unknown */
	unsigned handles;  /* open in libuv */
	unsigned jobs;	   /* in libuv's pool: it is not freed before they return */
	bool closing;
	struct user *user;
	bool waiting; /* is it in that queue? */
	TAILQ_ENTRY(connection) waits;
	uint64_t since_ms; /* when the last message arrived */

	struct control *control;
	bool greeted;
	char host[LIMIT_NAME_BYTES + 1];
	uint64_t token; /* random number of its process, from the hello; 0: none sent */
	struct session *session;
	struct state_job *errand; /* that it waits for, or NULL */
	struct request *request;  /* the operator's request whose answers it waits for, or NULL */
};

/* The caller has set loop and control. */
void connections_init(struct connections *all);

/* Takes over the accepted socket @fd of @peer, and begins to receive. @user: see user_connect().
 * Out of memory, it is closed. */
void connection_start(struct connections *all, int fd, const struct ucred *peer, struct user *user);

/*
 * Sends a message. @serial: that of the query it replies to; 0: none. If the socket's buffer is
 * full, the client does not read its replies, and is disconnected.
 */
void connection_send(struct connection *c, uint64_t serial, struct wire *w);
/* The same, with @n descriptors, which stay the caller's. */
void connection_send_fds(
	struct connection *c, uint64_t serial, struct wire *w, const int *fds, unsigned n);
/* Warns the user of the trainer. */
void connection_warn(struct connection *c, const char *text);
/* Replies with an error and stays open. */
void connection_error(struct connection *c, uint64_t serial, const struct fault *fault);
/* Logs and sends an error, and closes. */
void connection_refuse(struct connection *c, uint64_t serial, const struct fault *fault);
/* The same, unasked, about @subject. */
void connection_refuse_about(struct connection *c, uint64_t serial,
	const struct log_subject *subject, const struct fault *fault);

void connection_close(struct connection *c);
/* Frees a closed connection that has no handle, job or session left. Call it when one of them ends.
 */
void connection_settle(struct connection *c);

/* Asserts the invariants between turns of the loop. */
void connections_check(const struct connections *all);

static inline uint64_t connection_now(const struct connection *c)
{
	return uv_now(c->all->loop);
}

/*
 * accept.c accepts new clients. It refuses a client whose user may not connect, or for which no
 * connection is left. When the process is out of file descriptors, a spare one is closed, so that
 * the client can be accepted and told why.
 */
struct acceptor {
	struct connections *connections;
	const struct config *config;
	struct users *users;
	int fd; /* the listening socket; not owned */
	uv_poll_t poll;
	uv_timer_t again; /* ends a pause in accepting */
	int spare_fd;	  /* closed when descriptors run out; -1: none */
};

/* May the user connect? */
bool acceptor_allows(const struct acceptor *acceptor, uid_t uid);
/* Begins to accept. The caller has set the first four members. */
void acceptor_start(struct acceptor *acceptor);
/* Call once a second: accepts again if descriptors have become free. */
void acceptor_clock(struct acceptor *acceptor);
/* Stops accepting. The libuv handles close during the next turns of the loop. */
void acceptor_stop(struct acceptor *acceptor);

#endif
