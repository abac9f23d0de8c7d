#include "daemon/control/connection.h"

#include "daemon/control/log.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum {
	/* Packets that are still read from a dead client: without credit, and with credit (more
	 * than a socket's queue holds). */
	LAST_WORDS = 4,
	LAST_WORDS_MOST = 512,
	MAX_FDS = 8,
	PACE_MS = 1,
};

/* ---- closing ---- */

void connection_settle(struct connection *c)
{
	if (!c->closing || c->handles > 0 || c->jobs > 0 || c->session)
		return;
	if (c->next)
		c->next->before = c->before;
	if (c->before)
		c->before->next = c->next;
	else
		c->all->first = c->next;
	c->all->n--;
	if (c->quota)
		quota_disconnect(c->quota);
	closer_close(&c->all->closers, c->fd);
	pace_leave(&c->member);
	free(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct connection *c = handle->data;

	if (handle == (uv_handle_t *)&c->process)
		close(c->pidfd);
	c->handles--;
	connection_settle(c);
}

void connection_close(struct connection *c)
{
	if (c->closing)
		return;
	c->closing = true;
	pace_forget(&c->member);
	/* The client sees the end now. The descriptor stays open until the data thread has released
	 * it. */
	shutdown(c->fd, SHUT_RDWR);
	uv_close((uv_handle_t *)&c->poll, on_handle_closed);
	if (c->pidfd >= 0)
		uv_close((uv_handle_t *)&c->process, on_handle_closed);
	c->all->events->on_closed(c);
}

/* ---- sending ---- */

void connection_send_fds(
	struct connection *c, uint64_t serial, struct wire *w, const int *fds, unsigned n)
{
	char *packet = c->all->outgoing;
	char control[CMSG_SPACE(MAX_FDS * sizeof(int))];

	if (c->closing)
		return;
	if (serial != 0)
		wire_set(w, WIRE_SERIAL, serial);

	size_t length = wire_encode(w, packet);
	struct iovec part = {packet, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	assert(length > 0 && n <= MAX_FDS);
	if (n > 0) {
		memset(control, 0, sizeof(control));
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));

		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(head), fds, n * sizeof(int));
	}
	if (sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length)
		return;
	if (errno == EAGAIN)
		log_client(c->account, LOG_WARNING,
			"pid %d disconnected: it does not read its replies", (int)c->pid);
	connection_close(c);
}

void connection_send(struct connection *c, uint64_t serial, struct wire *w)
{
	connection_send_fds(c, serial, w, NULL, 0);
}

void connection_warn(struct connection *c, const char *text)
{
	struct wire w = {.op = WIRE_WARNING};
	char clean[LIMIT_TEXT_BYTES];

	snprintf(clean, sizeof(clean), "%s", text);
	wire_set_text(&w, WIRE_TEXT, fault_line(clean));
	connection_send(c, 0, &w);
}

void connection_error(struct connection *c, uint64_t serial, const struct fault *fault)
{
	struct wire w = {.op = WIRE_ERROR};

	wire_set_code(&w, fault->code);
	wire_set_text(&w, WIRE_FIELD, fault->field);
	wire_set_text(&w, WIRE_TEXT, fault->text);
	if (fault->passing)
		wire_set(&w, WIRE_PASSING, 1);
	connection_send(c, serial, &w);
}

void connection_refuse(struct connection *c, uint64_t serial, const struct fault *fault)
{
	log_client(c->account, LOG_WARNING, "pid %d (uid %u) disconnected: %s: %s: %s", (int)c->pid,
		(unsigned)c->uid, wire_code_name(fault->code), fault->field, fault->text);
	connection_error(c, serial, fault);
	connection_close(c);
}

void connection_refuse_about(
	struct connection *c, const struct log_subject *subject, const struct fault *fault)
{
	log_session(c->uid, subject, LOG_WARNING, "pid %d (uid %u) disconnected: %s: %s: %s",
		(int)c->pid, (unsigned)c->uid, wire_code_name(fault->code), fault->field,
		fault->text);
	connection_error(c, 0, fault);
	connection_close(c);
}

/* ---- receiving ---- */

/*
 * Looks at the next packet. Returns its length, or what recvmsg() does. *@descriptors: it has some.
 * It then stays in the queue, because to receive it may block: see closer.h.
 */
static ssize_t look(int fd, bool *descriptors)
{
	struct msghdr message = {0};
	ssize_t n;

	/* A client that closes with unread replies resets the connection. The packets that it sent
	 * before follow. */
	do
		n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
	while (n < 0 && errno == ECONNRESET);
	*descriptors = n >= 0 && (message.msg_flags & MSG_CTRUNC);
	return n;
}

static void reject(struct connection *c, const char *field, const char *text)
{
	struct fault fault;

	fault_set(&fault, FAULT_PROTOCOL, field, "%s", text);
	connection_refuse(c, 0, &fault);
}

/* Handles the next packet. False: there is none, or the connection is closing. */
static bool receive(struct connection *c)
{
	char *packet = c->all->incoming;
	bool descriptors;
	ssize_t n = look(c->fd, &descriptors);
	struct fault fault;
	struct wire w;

	if (n > 0 && !descriptors)
		do
			n = recv(c->fd, packet, LIMIT_PACKET_BYTES, MSG_DONTWAIT | MSG_TRUNC);
		while (n < 0 && errno == ECONNRESET);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0 && !descriptors) {
		connection_close(c);
		return false;
	}
	if (descriptors) {
		reject(c, "descriptors", "clients may not send file descriptors");
	} else if (n > LIMIT_PACKET_BYTES) {
		reject(c, "packet", "longer than 128 KiB");
	} else if (n == 1) {
		c->all->events->on_wake(c);
	} else if (!wire_decode(&w, packet, (size_t)n, &fault)) {
		connection_refuse(c, 0, &fault);
	} else {
		c->since_ms = connection_now(c);
		c->all->events->on_packet(c, &w);
	}
	return !c->closing;
}

void connection_charge(struct connection *c, uint64_t used_ns)
{
	pace_charge(&c->member, used_ns);
}

static bool may_receive(struct connection *c)
{
	return pace_may(&c->member, connection_now(c));
}

static bool receive_and_charge(struct connection *c)
{
	uint64_t begin = pace_clock();
	bool more = receive(c);

	connection_charge(c, pace_clock() - begin);
	return more;
}

/* The client is gone. Packets sent before count: a rank may answer a request and exit. */
static void drain(struct connection *c)
{
	for (int i = 0; i < LAST_WORDS || (i < LAST_WORDS_MOST && may_receive(c)); i++)
		if (!receive_and_charge(c))
			break;
	connection_close(c);
}

static void on_pace(uv_timer_t *timer);

static void wait_for_credit(struct connection *c)
{
	struct connections *all = c->all;

	uv_poll_stop(&c->poll);
	pace_wait(&all->paces, &c->member);
	if (!uv_is_active((uv_handle_t *)&all->pace))
		uv_timer_start(&all->pace, on_pace, PACE_MS, PACE_MS);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)events;
	if (status < 0) /* reset: libuv has stopped polling */
		drain(c);
	else if (may_receive(c))
		receive_and_charge(c); /* one packet, then the other connections have their turn */
	else
		wait_for_credit(c);
}

static void listen_to(struct connection *c)
{
	if (!c->closing)
		uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

/* Receives one packet; true: it waits for its next turn. Polls the socket again if there was no
 * packet, or if nobody else needs the time. */
static bool serve(struct pace_member *member, bool alone)
{
	struct connection *c =
		(struct connection *)((char *)member - offsetof(struct connection, member));

	if (!alone && receive_and_charge(c))
		return true;
	listen_to(c);
	return false;
}

static void on_pace(uv_timer_t *timer)
{
	struct connections *all = timer->data;

	if (!pace_serve(&all->paces, uv_now(all->loop), serve))
		uv_timer_stop(timer);
}

/* The client's process died, even if another process still has its end of the socket. */
static void on_process_end(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)status, (void)events;
	if (!c->closing)
		c->all->events->on_process_end(c);
	drain(c);
}

/* ---- new ones ---- */

static int open_pidfd(int socket, pid_t pid)
{
	int fd = -1;
	socklen_t n = sizeof(fd);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0)
		return fd;
	/* Across sibling PID namespaces the pid is 0: then only the socket's end shows a death. */
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static bool peer_left(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* NULL: out of memory, or the client has no credit and has left already. */
static struct connection *make(
	struct connections *all, int fd, const struct ucred *peer, uid_t account, uint64_t begin_ns)
{
	struct connection *c = calloc(1, sizeof(*c));
	uint64_t now = uv_now(all->loop);

	if (!c)
		return NULL;
	*c = (struct connection){.all = all,
		.control = all->control,
		.fd = fd,
		.pid = peer->pid,
		.uid = peer->uid,
		.account = account,
		.handles = 1,
		.since_ms = now};
	c->poll.data = c->process.data = c;
	if (pace_join(&all->paces, &c->member, account, now)) {
		if ((may_receive(c) || !peer_left(fd)) &&
			uv_poll_init(all->loop, &c->poll, fd) == 0)
			return c;
		connection_charge(c, pace_clock() - begin_ns);
		pace_leave(&c->member);
	}
	free(c);
	return NULL;
}

struct connection *connection_new(
	struct connections *all, int fd, const struct ucred *peer, uid_t account, uint64_t begin_ns)
{
	struct connection *c = make(all, fd, peer, account, begin_ns);

	if (!c) {
		closer_close(&all->closers, fd);
		return NULL;
	}
	c->next = all->first;
	if (c->next)
		c->next->before = c;
	all->first = c;
	all->n++;
	c->pidfd = open_pidfd(fd, peer->pid);
	if (c->pidfd >= 0 && uv_poll_init(all->loop, &c->process, c->pidfd) < 0) {
		close(c->pidfd);
		c->pidfd = -1;
	}
	if (c->pidfd >= 0) {
		c->handles = 2;
		uv_poll_start(&c->process, UV_READABLE, on_process_end);
	}
	return c;
}

bool connection_start(struct connection *c, uint64_t used_ns)
{
	connection_charge(c, used_ns);
	if (may_receive(c)) {
		listen_to(c);
		return false;
	}
	if (!c->closing)
		wait_for_credit(c);
	return true;
}

/* ---- all of them ---- */

void connections_init(struct connections *all)
{
	paces_init(&all->paces);
	all->closers.loop = all->loop;
	uv_timer_init(all->loop, &all->pace);
	all->pace.data = all;
}

void connections_stop(struct connections *all)
{
	assert(!all->first);
	uv_close((uv_handle_t *)&all->pace, NULL);
	closers_stop(&all->closers);
}

void connections_free(struct connections *all)
{
	paces_free(&all->paces);
}

void connections_check(const struct connections *all)
{
	const struct connection *before = NULL;
	unsigned n = 0;

	for (const struct connection *c = all->first; c; before = c, c = c->next) {
		assert(c->all == all && c->before == before && c->fd >= 0);
		assert(c->member.pace && c->member.pace->members > 0);
		assert(!c->closing || !c->member.waiting);
		assert(!c->closing || c->handles > 0 || c->jobs > 0 || c->session);
		assert(c->closing || c->handles > 0);
		n++;
	}
	assert(n == all->n);
}
