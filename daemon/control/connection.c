#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

enum {
	/* Packets that are still read from a dead client: without tokens, and with them (more than
	 * a socket's queue holds). */
	LAST_WORDS = 4,
	LAST_WORDS_MOST = 512,
	AGAIN_MS = 1,
	CLOSERS = 64,
	KIB = 1024,
};

/* ---- sockets ---- */

void socket_prepare(int fd)
{
	(void)!setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
	/* Gives each packet a control message, which tells an empty packet from the end. */
	(void)!setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
}

bool socket_refuses(int fd)
{
	int passes = 1;
	socklen_t n = sizeof(passes);

	return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &n) == 0 && !passes;
}

/*
 * Looks at the next packet. Returns its length, or what recvmsg() does. *@descriptors: it has some.
 * It then stays in the queue, because to receive it may block: see socket_close(). *@end: there is
 * no packet, and none will come.
 */
static ssize_t look(int fd, bool *descriptors, bool *end)
{
	char control[CMSG_SPACE(sizeof(struct ucred))]; /* no room for descriptors */
	struct msghdr message;
	ssize_t n;

	/* A client that closes with unread replies resets the connection. Its packets follow. */
	do {
		message =
			(struct msghdr){.msg_control = control, .msg_controllen = sizeof(control)};
		n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
	} while (n < 0 && errno == ECONNRESET);
	*descriptors = n >= 0 && (message.msg_flags & MSG_CTRUNC);
	*end = n == 0 && message.msg_controllen == 0;
	return n;
}

/* Drops the packets that wait, up to one with descriptors. */
static bool has_descriptors(int fd)
{
	bool descriptors, end;
	char byte;

	shutdown(fd, SHUT_RDWR); /* no more will come */
	while (look(fd, &descriptors, &end) >= 0 && !descriptors && !end)
		(void)!recv(fd, &byte, 1, MSG_DONTWAIT);
	return descriptors;
}

static _Atomic unsigned closers; /* static, because these threads may outlive all else */

static void *close_slowly(void *fd)
{
	close((int)(intptr_t)fd);
	atomic_fetch_sub(&closers, 1);
	return NULL;
}

/* If too many closes do not return, @fd stays open. */
static void socket_close(int fd)
{
	if (socket_refuses(fd) || !has_descriptors(fd)) {
		close(fd);
		return;
	}
	if (atomic_fetch_add(&closers, 1) < CLOSERS &&
		thread_start(NULL, close_slowly, (void *)(intptr_t)fd) == 0)
		return;
	atomic_fetch_sub(&closers, 1);
	log_client(0, LOG_WARNING,
		"a client's socket cannot be closed, because files that clients sent do not "
		"answer; its descriptor stays in use until a restart; Linux 6.16 prevents that");
}

/* ---- closing ---- */

void connection_settle(struct connection *c)
{
	if (!c->closing || c->handles > 0 || c->jobs > 0 || c->session)
		return;
	LIST_REMOVE(c, others);
	c->control->connections.n--;
	user_disconnect(c->user);
	socket_close(c->fd);
	connections_retry(c->control);
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

static void stop_waiting(struct connection *c)
{
	if (c->waiting)
		TAILQ_REMOVE(&c->control->connections.waiting, c, waits);
	c->control->connections.waiting_n -= c->waiting;
	c->waiting = false;
}

void connection_close(struct connection *c)
{
	if (c->closing)
		return;
	c->closing = true;
	stop_waiting(c);
	/* The client sees the end now. The descriptor stays open for the data thread. */
	shutdown(c->fd, SHUT_RDWR);
	uv_close((uv_handle_t *)&c->poll, on_handle_closed);
	if (c->pidfd >= 0)
		uv_close((uv_handle_t *)&c->process, on_handle_closed);
	request_abandon(c);
	state_forget(c);
	if (c->session && c->session->fed)
		request_leave(c->session);
	if (c->session)
		session_leave(c->session);
}

/* ---- sending ---- */

void connection_send_fds(struct connection *c, uint64_t serial, struct wire *w, const int fds[2])
{
	char *packet = c->control->connections.outgoing;
	char control[CMSG_SPACE(2 * sizeof(int))] = {0};

	if (c->closing)
		return;
	if (serial != 0)
		wire_set(w, WIRE_SERIAL, serial);

	size_t length = wire_encode(w, packet);
	struct iovec part = {packet, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	assert(length > 0);
	user_charge(c->user, length / KIB);
	if (fds) {
		message.msg_control = control;
		message.msg_controllen = sizeof(control);

		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(2 * sizeof(int));
		memcpy(CMSG_DATA(head), fds, 2 * sizeof(int));
	}
	if (sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length)
		return;
	if (errno == EAGAIN)
		log_client(c->uid, LOG_WARNING, "pid %d disconnected: it does not read its replies",
			(int)c->pid);
	connection_close(c);
}

void connection_send(struct connection *c, uint64_t serial, struct wire *w)
{
	connection_send_fds(c, serial, w, NULL);
}

void connection_warn(struct connection *c, const char *text)
{
	struct wire w = {.op = WIRE_WARNING};
	char clean[LIMIT_TEXT_BYTES];

	snprintf(clean, sizeof(clean), "%s", text);
	wire_set_text(&w, WIRE_TEXT, fault_line(clean));
	connection_send(c, 0, &w);
}

static struct wire error_message(const struct fault *fault)
{
	struct wire w = {.op = WIRE_ERROR};

	wire_set(&w, WIRE_CODE, fault->code);
	wire_set_text(&w, WIRE_FIELD, fault->field);
	wire_set_text(&w, WIRE_TEXT, fault->text);
	if (fault->passing)
		wire_set(&w, WIRE_PASSING, 1);
	return w;
}

void connection_error(struct connection *c, uint64_t serial, const struct fault *fault)
{
	struct wire w = error_message(fault);

	connection_send(c, serial, &w);
}

void connection_refuse(struct connection *c, uint64_t serial, const struct fault *fault)
{
	const struct session *s = c->session;
	char about[LIMIT_NAME_BYTES + 64] = "";

	if (s && s->fed)
		snprintf(about, sizeof(about), " (run %s, rank %" PRIu64 ")", s->run, s->rank);
	log_client(c->uid, LOG_WARNING, "pid %d (uid %u) refused: %s: %s%s", (int)c->pid,
		(unsigned)c->uid, fault->field, fault->text, about);
	connection_error(c, serial, fault);
	connection_close(c);
}

/* ---- messages ---- */

const struct stream *connection_stream(
	const struct connection *c, const struct wire *w, enum fault_code code, struct fault *fault)
{
	const struct config *config = c->control->config;
	char name[LIMIT_NAME_BYTES + 1], list[NEAREST_LIST_BYTES];
	const struct stream *stream = NULL;

	if (!wire_text(w, WIRE_STREAM, name, sizeof(name)) || !wire_name_ok(name))
		fault_set(fault, code, "stream", "must be " PHRASE_NAME);
	else if (!(stream = catalog_stream(c->control->catalog, name)))
		fault_set(fault, code, "stream", "%s is not a stream of %s; must be one of: %s",
			name, config->path, config_list_streams(config, name, list));
	return stream;
}

static void hello(struct connection *c, const struct wire *w)
{
	struct wire answer = {.op = WIRE_HELLO};
	struct fault fault;

	if (wire_number(w, WIRE_VERSION_KEY) != WIRE_VERSION) {
		fault_set(&fault, FAULT_PROTOCOL, "version",
			"this daemon speaks protocol version %d; " PHRASE_RELEASE, WIRE_VERSION);
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	if (!wire_text(w, WIRE_HOST, c->host, sizeof(c->host)) || !wire_label_ok(c->host))
		c->host[0] = 0;
	c->token = wire_has(w, WIRE_PROCESS) ? wire_number(w, WIRE_PROCESS) : 0;
	c->greeted = true;
	wire_set(&answer, WIRE_VERSION_KEY, WIRE_VERSION);
	connection_send(c, wire_number(w, WIRE_SERIAL), &answer);
}

/* The messages that clients may send. A new one is one line here, and a handler. */
static const struct {
	void (*handle)(struct connection *c, const struct wire *w);
	enum fault_code unattached; /* error if not attached; FAULT_NONE: need not be */
	bool waits;		    /* for a state_job; a connection waits for one at a time */
} messages[WIRE_OPS] = {
	[WIRE_HELLO] = {hello, FAULT_NONE, false},
	[WIRE_ATTACH] = {session_attach, FAULT_NONE, true},
	[WIRE_CHECKPOINT] = {state_checkpoint, FAULT_CHECKPOINT, true},
	[WIRE_PENDING] = {request_pending, FAULT_REQUEST, false},
	[WIRE_DESCRIBE] = {request_describe, FAULT_REQUEST, false},
	[WIRE_ANSWER] = {request_answer, FAULT_REQUEST, false},
	[WIRE_REQUEST] = {request_new, FAULT_NONE, false},
	[WIRE_CANCEL] = {request_cancel, FAULT_NONE, false},
	[WIRE_STATUS] = {status_reply, FAULT_NONE, false},
};

static bool may_handle(const struct connection *c, const struct wire *w, struct fault *fault)
{
	enum fault_code unattached = messages[w->op].unattached;

	if (!c->greeted && w->op != WIRE_HELLO)
		return fault_set(fault, FAULT_PROTOCOL, "op", "send hello first");
	if (c->uid == c->control->users.web_uid && w->op != WIRE_HELLO && w->op != WIRE_STATUS)
		return fault_set(fault, FAULT_PERMISSION, "op",
			"user tokend-web may only ask for the status");
	if (!messages[w->op].handle)
		return fault_set(fault, FAULT_PROTOCOL, "op", "clients may not send this message");
	if (unattached != FAULT_NONE && (!c->session || !c->session->fed))
		return fault_set(fault, unattached, "connection", "attach first");
	if (w->op == WIRE_ATTACH && c->session)
		return fault_set(fault, FAULT_ATTACH, "connection",
			"already attached; open another connection for another session");
	if (messages[w->op].waits && c->errand)
		return fault_set(fault, FAULT_PROTOCOL, "connection",
			"already waits for another reply; open another connection");
	return true;
}

static void wake(struct connection *c)
{
	/* A flood of needless wake-ups does not reach the data thread. */
	if (c->session && c->session->fed && ring_wanted(&c->session->memory.ring))
		data_thread_tell(c->session, DATA_THREAD_KICK);
}

/* ---- receiving ---- */

/* Handles the next packet. False: there is none, or the connection is closing. */
static bool receive(struct connection *c)
{
	char *packet = c->control->connections.incoming;
	bool descriptors, end, fine = true;
	ssize_t n = look(c->fd, &descriptors, &end);
	uint64_t serial = 0;
	struct fault fault;
	struct wire w;

	if (n > 0 && !descriptors)
		do
			n = recv(c->fd, packet, LIMIT_PACKET_BYTES, MSG_DONTWAIT | MSG_TRUNC);
		while (n < 0 && errno == ECONNRESET);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	user_charge(c->user, 1 + (n > 0 ? (uint64_t)n / KIB : 0));
	if (descriptors) {
		fine = fault_set(&fault, FAULT_PROTOCOL, "descriptors",
			"clients may not send file descriptors");
	} else if (n <= 0) {
		connection_close(c);
	} else if (n > LIMIT_PACKET_BYTES) {
		fine = fault_set(&fault, FAULT_PROTOCOL, "packet", "longer than 128 KiB");
	} else if (n == 1) {
		wake(c);
	} else if ((fine = wire_decode(&w, packet, (size_t)n, &fault))) {
		c->since_ms = connection_now(c);
		serial = wire_number(&w, WIRE_SERIAL);
		fine = may_handle(c, &w, &fault);
		if (fine)
			messages[w.op].handle(c, &w);
	}
	if (!fine)
		connection_refuse(c, serial, &fault);
	return !c->closing;
}

static bool may_receive(struct connection *c)
{
	return user_may(c->user, connection_now(c));
}

/* The client is gone. Packets sent before count: a rank may answer a request and exit. */
static void drain(struct connection *c)
{
	for (int i = 0; i < LAST_WORDS || (i < LAST_WORDS_MOST && may_receive(c)); i++)
		if (!receive(c))
			break;
	connection_close(c);
}

static void on_again(uv_timer_t *timer);

static void start_again(struct connections *all)
{
	if (!uv_is_active((uv_handle_t *)&all->again))
		uv_timer_start(&all->again, on_again, AGAIN_MS, 0);
}

/* Waits until its user has a token, as the last of the user's connections. */
static void wait(struct connection *c)
{
	struct connections *all = &c->control->connections;

	uv_poll_stop(&c->poll);
	c->waiting = true;
	TAILQ_INSERT_TAIL(&all->waiting, c, waits);
	all->waiting_n++;
	start_again(all);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)events;
	if (status < 0) /* reset: libuv has stopped polling */
		drain(c);
	else if (may_receive(c))
		receive(c); /* one packet, then the other connections have their turn */
	else
		wait(c);
}

static void listen_or_wait(struct connection *c)
{
	if (c->closing)
		return;
	if (may_receive(c))
		uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_readable);
	else
		wait(c);
}

/* The client's process died, even if another process still has its end of the socket. */
static void on_process_end(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)status, (void)events;
	if (!c->closing && c->session)
		c->session->process_ended = true;
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

/* Takes over the accepted socket @fd of @peer. Out of memory, it is closed. */
static void begin(struct control *control, int fd, const struct ucred *peer, struct user *user)
{
	struct connection *c = calloc(1, sizeof(*c));

	if (!c || uv_poll_init(control->loop, &c->poll, fd) < 0) {
		free(c);
		user_disconnect(user);
		socket_close(fd);
		return;
	}
	c->control = control;
	c->fd = fd;
	c->pid = peer->pid;
	c->uid = peer->uid;
	c->user = user;
	c->handles = 1;
	c->since_ms = connection_now(c);
	c->poll.data = c->process.data = c;
	LIST_INSERT_HEAD(&control->connections.open, c, others);
	control->connections.n++;
	c->pidfd = open_pidfd(fd, peer->pid);
	if (c->pidfd >= 0 && uv_poll_init(control->loop, &c->process, c->pidfd) < 0) {
		close(c->pidfd);
		c->pidfd = -1;
	}
	if (c->pidfd >= 0) {
		c->handles = 2;
		uv_poll_start(&c->process, UV_READABLE, on_process_end);
	}
	user_charge(user, 1);
	listen_or_wait(c);
}

static bool may_connect(const struct control *control, uid_t uid)
{
	const struct config *config = control->config;

	for (uint32_t i = 0; i < config->allow_uids; i++)
		if (config->allow_uid[i] == uid)
			return true;
	return uid == control->users.web_uid || runs_privileged(config, uid);
}

/* The user of client @fd, with one more connection. NULL: @fault. */
static struct user *admit(struct control *control, int fd, struct ucred *peer, struct fault *fault)
{
	socklen_t n = sizeof(*peer);
	struct user *user = NULL;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &n) < 0)
		fault_errno(fault, errno, "connections", "%s", strerror(errno));
	else if (!may_connect(control, peer->uid))
		fault_set(fault, FAULT_PERMISSION, "allow_uids",
			"uid %u may not connect; add it to allow_uids", (unsigned)peer->uid);
	else if (!(user = user_of(&control->users, peer->uid)))
		fault_memory(fault);
	return user && user_connect(user, control->connections.n + 1, fault) ? user : NULL;
}

/* Accepts a client, if one waits and there is a descriptor for it. */
static void accept_one(struct control *control, int listening)
{
	int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	char *packet = control->connections.outgoing;
	struct ucred peer = {0};
	struct fault fault;
	struct user *user;
	struct wire w;

	if (fd < 0) {
		control->connections.full =
			errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
		if (control->connections.full)
			log_client(0, LOG_WARNING, "clients wait: %s; " PHRASE_NOFILE,
				strerror(errno));
		return;
	}
	user = admit(control, fd, &peer, &fault);
	if (user) {
		begin(control, fd, &peer, user);
		return;
	}
	/* A stranger may have many uids. */
	log_client(fault.code == FAULT_PERMISSION ? (uid_t)LOG_STRANGERS : peer.uid, LOG_WARNING,
		"pid %d (uid %u) refused: %s: %s", (int)peer.pid, (unsigned)peer.uid, fault.field,
		fault.text);
	w = error_message(&fault);
	send(fd, packet, wire_encode(&w, packet), MSG_DONTWAIT | MSG_NOSIGNAL);
	socket_close(fd);
}

/* One at a time, so that a flood of them leaves the thread to others. */
static void on_accept(uv_poll_t *poll, int status, int events)
{
	struct control *control = poll->data;

	(void)status, (void)events;
	accept_one(control, control->options->kept->listener.fd);
	if (control->connections.full)
		uv_poll_stop(poll);
}

void connections_retry(struct control *control)
{
	if (!control->connections.full || control->stopping)
		return;
	control->connections.full = false;
	uv_poll_start(&control->connections.listening, UV_READABLE, on_accept);
}

/* ---- all of them ---- */

/* Each connection that waits has a turn, and receives a packet if its user has a token. */
static void on_again(uv_timer_t *timer)
{
	struct connections *all = timer->data;
	struct connection *c;

	for (unsigned n = all->waiting_n; n > 0 && (c = TAILQ_FIRST(&all->waiting)); n--) {
		stop_waiting(c);
		if (may_receive(c))
			receive(c);
		listen_or_wait(c);
	}
}

void connections_start(struct control *control)
{
	struct connections *all = &control->connections;

	users_find_web(&control->users);
	TAILQ_INIT(&all->waiting);
	uv_timer_init(control->loop, &all->again);
	uv_poll_init(control->loop, &all->listening, control->options->kept->listener.fd);
	all->again.data = all;
	all->listening.data = control;
	uv_poll_start(&all->listening, UV_READABLE, on_accept);
}

void connections_stop(struct control *control)
{
	struct connection *c;

	uv_close((uv_handle_t *)&control->connections.listening, NULL);
	/* Before the clients notice: they connect again, and find our successor sooner. */
	listener_close(&control->options->kept->listener);
	LIST_FOREACH(c, &control->connections.open, others)
	connection_close(c);
}
