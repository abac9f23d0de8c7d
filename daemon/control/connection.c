#include "daemon/control/log.h"
#include "daemon/control/server.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum {
	ACCEPTS_A_TURN = 16, /* those to be refused hold a descriptor until its end */
	ACCEPTS_LATE =
		16, /* a millisecond, of those who have no credit: others are in the queue, too */
	LAST_WORDS = 4,	       /* packets of a peer that is gone, */
	LAST_WORDS_MOST = 512, /* and with credit more than a socket's queue holds */
	MAX_FDS = 8,
};

static void fill(struct refusal *r, bool passing, const char *code, const char *field,
	const char *format, va_list args)
{
	r->code = code;
	r->passing = passing;
	snprintf(r->field, sizeof(r->field), "%s", field);
	vsnprintf(r->text, sizeof(r->text), format, args);
}

bool refuse(struct refusal *r, const char *code, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fill(r, false, code, field, format, args);
	va_end(args);
	return false;
}

bool refuse_passing(struct refusal *r, const char *code, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fill(r, true, code, field, format, args);
	va_end(args);
	return false;
}

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
		c->server->connections = c->next;
	c->server->connected--;
	if (c->quota)
		quota_disconnect(c->quota);
	close(c->fd);
	pace_leave(c);
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
	pace_forget(c);
	/* The peer sees the end now; the descriptor lives until the data thread lets go of it. */
	shutdown(c->fd, SHUT_RDWR);
	uv_close((uv_handle_t *)&c->poll, on_handle_closed);
	if (c->pidfd >= 0)
		uv_close((uv_handle_t *)&c->process, on_handle_closed);
	request_abandon(c);
	errand_forget(c);
	if (c->session && c->session->fed)
		request_leave(c->session);
	if (c->session)
		session_leave(c->session);
}

/* ---- sending ---- */

void connection_send(struct connection *c, const struct wire *w, const int *fds, unsigned n)
{
	char *packet = c->server->outgoing;
	char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
	size_t length = wire_encode(w, packet);
	struct iovec part = {packet, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (c->closing)
		return;
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
		log_client(c->uid, LOG_WARNING, "pid %d does not read its replies: dropped",
			(int)c->pid);
	connection_close(c);
}

/* @text in @to as a text fit for a message: part of it may be what a client sent, or a path in
 * whatever encoding. */
static const char *printable(char *to, size_t capacity, const char *text)
{
	size_t n = 0;

	while (*text) {
		unsigned step = wire_character(text);

		if (n + (step ? step : 1) >= capacity)
			break;
		if (step)
			memcpy(to + n, text, step);
		else
			to[n] = '?';
		n += step ? step : 1;
		text += step ? step : 1;
	}
	to[n] = 0;
	return to;
}

static void send_error(
	struct connection *c, bool passing, const char *code, const char *field, const char *text)
{
	struct wire w = {.op = WIRE_ERROR};
	char plain_field[96], plain_text[LIMIT_TEXT_BYTES];

	wire_set_text(&w, WIRE_CODE, code);
	wire_set_text(&w, WIRE_FIELD, printable(plain_field, sizeof(plain_field), field));
	wire_set_text(&w, WIRE_TEXT, printable(plain_text, sizeof(plain_text), text));
	if (passing)
		wire_set(&w, WIRE_PASSING, 1);
	connection_send(c, &w, NULL, 0);
}

void connection_error(struct connection *c, const char *code, const char *field, const char *text)
{
	send_error(c, false, code, field, text);
}

static void close_with(
	struct connection *c, bool passing, const char *code, const char *field, const char *text)
{
	log_client(
		c->uid, LOG_WARNING, "pid %d: %s refused: %s: %s", (int)c->pid, code, field, text);
	send_error(c, passing, code, field, text);
	connection_close(c);
}

void connection_refuse(struct connection *c, const char *code, const char *field, const char *text)
{
	close_with(c, false, code, field, text);
}

void connection_refuse_with(struct connection *c, const struct refusal *refusal)
{
	close_with(c, refusal->passing, refusal->code, refusal->field, refusal->text);
}

/* ---- receiving ---- */

static void hello(struct connection *c, const struct wire *w)
{
	struct wire answer = {.op = WIRE_HELLO};

	if (wire_number(w, WIRE_VERSION_KEY) != WIRE_VERSION) {
		connection_refuse(c, "protocol", "version",
			"this tokend speaks version 1: install client and daemon of one release");
		return;
	}
	if (!wire_text(w, WIRE_HOST, c->host, sizeof(c->host)) || !wire_label_ok(c->host))
		c->host[0] = 0;
	c->token = wire_has(w, WIRE_PROCESS) ? wire_number(w, WIRE_PROCESS) : 0;
	c->greeted = true;
	wire_set(&answer, WIRE_VERSION_KEY, WIRE_VERSION);
	connection_send(c, &answer, NULL, 0);
}

static void dispatch(struct connection *c, const struct wire *w)
{
	c->since_ms = uv_now(&c->server->loop);
	if (!c->greeted && w->op != WIRE_HELLO) {
		connection_refuse(c, "protocol", "op", "say hello first");
		return;
	}
	switch (w->op) {
	case WIRE_HELLO:
		hello(c, w);
		return;
	case WIRE_ATTACH:
		session_attach(c, w);
		return;
	case WIRE_CHECKPOINT:
		snapshot_save(c, w);
		return;
	case WIRE_PENDING:
		request_pending(c);
		return;
	case WIRE_DESCRIBE:
		request_describe(c);
		return;
	case WIRE_ANSWER:
		request_answer(c, w);
		return;
	case WIRE_CANCEL:
		request_cancel(c, w);
		return;
	case WIRE_REQUEST:
		request_new(c, w);
		return;
	case WIRE_STATUS:
		status_list(c, w);
		return;
	default:
		connection_refuse(c, "protocol", "op", "not a message for a daemon");
	}
}

/* Nobody sends us descriptors; whoever does is dropped, and they are closed. */
static bool close_descriptors(struct msghdr *message)
{
	bool any = message->msg_flags & MSG_CTRUNC;

	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head;
		head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
			close(fd);
		}
		any = true;
	}
	return any;
}

static bool receive(struct connection *c)
{
	char *packet = c->server->incoming;
	char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
	struct iovec part = {packet, LIMIT_PACKET_BYTES};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct fault fault;
	struct wire w;

	/* A peer that closes with our bytes unread resets the connection; what it said before comes
	 * after that. */
	if (n < 0 && errno == ECONNRESET)
		n = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) {
		connection_close(c);
		return false;
	}
	if (close_descriptors(&message)) {
		connection_refuse(c, "protocol", "descriptors", "a client sends none");
	} else if (message.msg_flags & MSG_TRUNC) {
		connection_refuse(c, "protocol", "packet", "longer than 128 KiB");
	} else if (n == 1) {
		if (c->session && c->session->fed)
			feeder_kick(c->server->feeder, c->session->id);
	} else if (!wire_decode(&w, packet, (size_t)n, &fault)) {
		connection_refuse(c, "protocol", fault.field, fault.text);
	} else {
		dispatch(c, &w);
	}
	return !c->closing;
}

bool connection_receive(struct connection *c)
{
	uint64_t begin = pace_clock();
	bool more = receive(c);

	pace_charge(c, pace_clock() - begin);
	return more;
}

/* The peer is gone. What it said before counts: a rank acknowledges, then leaves. */
static void hear_out(struct connection *c)
{
	for (int i = 0; i < LAST_WORDS || (i < LAST_WORDS_MOST && pace_may(c)); i++)
		if (!connection_receive(c))
			break;
	connection_close(c);
}

static void wait_for_credit(struct connection *c)
{
	uv_poll_stop(&c->poll);
	pace_wait(c);
	server_pace(c->server);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)events;
	if (status < 0) /* a reset: libuv has stopped the poll */
		hear_out(c);
	else if (pace_may(c))
		connection_receive(c); /* one packet, then the other connections get theirs */
	else
		wait_for_credit(c);
}

void connection_listen(struct connection *c)
{
	if (!c->closing)
		uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

/* The trainer died, whoever else still holds its end of the socket. */
static void on_process_end(uv_poll_t *poll, int status, int events)
{
	struct connection *c = poll->data;

	(void)status, (void)events;
	if (c->session && !c->closing)
		log_client(c->uid, LOG_NOTE, "pid %d ended: rank %llu of %s freed", (int)c->pid,
			(unsigned long long)c->session->rank, c->session->stream->config->name);
	hear_out(c);
}

/* ---- accepting ---- */

static bool allowed(const struct config *config, uid_t uid)
{
	if (uid == 0 || uid == geteuid())
		return true;
	for (uint32_t i = 0; i < config->allow_uids; i++)
		if (config->allow_uid[i] == uid)
			return true;
	return runs_privileged(config, uid);
}

static int open_pidfd(int socket, pid_t pid)
{
	int fd = -1;
	socklen_t n = sizeof(fd);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0)
		return fd;
	/* Across sibling PID namespaces the pid is 0: then only the socket's end tells. */
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static bool may_stay(struct connection *c, struct refusal *why)
{
	const struct server_options *o = c->server->options;

	if (!allowed(o->catalog->config, c->uid))
		return refuse(why, "uid", "allow_uids",
			"uid %u may not attach: add it to allow_uids", (unsigned)c->uid);
	c->quota = quota_of(c->server->quotas, c->uid);
	if (!quota_connect(c->server->quotas, c->quota, c->server->connected, why))
		return false;
	if (c->server->connected > o->connections)
		return refuse_passing(why, "descriptors", "connections",
			"%u connections are all that the descriptors allow: raise LimitNOFILE "
			"(ulimit -n)",
			o->connections);
	return true;
}

static bool peer_left(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* NULL: out of memory; or it has no credit, and has left already. */
static struct connection *connection_make(
	struct server *server, int fd, const struct ucred *peer, uint64_t begin_ns)
{
	struct connection *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct connection){
		.server = server, .fd = fd, .pid = peer->pid, .uid = peer->uid, .handles = 1};
	c->poll.data = c->process.data = c;
	c->since_ms = uv_now(&server->loop);
	if (pace_join(c)) {
		if ((pace_may(c) || !peer_left(fd)) &&
			uv_poll_init(&server->loop, &c->poll, fd) == 0)
			return c;
		pace_charge(c, pace_clock() - begin_ns);
		pace_leave(c);
	}
	free(c);
	return NULL;
}

/* NULL as above, and @fd is closed. */
static struct connection *connection_new(
	struct server *server, int fd, const struct ucred *peer, uint64_t begin_ns)
{
	struct connection *c = connection_make(server, fd, peer, begin_ns);
	struct refusal refusal;

	if (!c) {
		close(fd);
		return NULL;
	}
	c->next = server->connections;
	if (c->next)
		c->next->before = c;
	server->connections = c;
	server->connected++;
	c->pidfd = open_pidfd(fd, peer->pid);
	if (c->pidfd >= 0 && uv_poll_init(&server->loop, &c->process, c->pidfd) < 0) {
		close(c->pidfd);
		c->pidfd = -1;
	}
	if (c->pidfd >= 0) {
		c->handles = 2;
		uv_poll_start(&c->process, UV_READABLE, on_process_end);
	}
	if (!may_stay(c, &refusal))
		connection_refuse_with(c, &refusal);
	return c;
}

/* Has its packets read as they come, or when there is credit for them. True: the latter. */
static bool listen_first(struct connection *c, uint64_t used_ns)
{
	pace_charge(c, used_ns);
	if (pace_may(c)) {
		connection_listen(c);
		return false;
	}
	if (!c->closing)
		wait_for_credit(c);
	return true;
}

/* To a client that gets no connection: it tries again. */
static void turn_away(struct server *server, int fd)
{
	struct wire w = {.op = WIRE_ERROR};

	wire_set_text(&w, WIRE_CODE, "descriptors");
	wire_set_text(&w, WIRE_FIELD, "connections");
	wire_set_text(&w, WIRE_TEXT,
		"the daemon is out of file descriptors: raise LimitNOFILE (ulimit -n)");
	wire_set(&w, WIRE_PASSING, 1);
	send(fd, server->outgoing, wire_encode(&w, server->outgoing), MSG_DONTWAIT | MSG_NOSIGNAL);
	close(fd);
}

/* Out of descriptors: give up the spare one to take the client off the queue, and refuse it. */
static void refuse_for_descriptors(struct server *server)
{
	if (server->spare_fd < 0) {
		/* Nothing to give up: leave the queue alone until on_second(), or the loop would
		 * spin on it.
		 */
		uv_poll_stop(&server->accept);
		return;
	}
	close(server->spare_fd);

	int fd = accept4(server->listener->fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0)
		turn_away(server, fd);
	server->spare_fd = dup(STDERR_FILENO); /* if somebody was faster: on_second() tries again */
	log_client(0, LOG_WARNING,
		"out of file descriptors: a client was turned away; raise LimitNOFILE");
}

void connection_accept(struct server *server)
{
	for (int i = 0, late = 0; i < ACCEPTS_A_TURN; i++) {
		uint64_t begin = pace_clock();
		struct ucred peer = {0};
		socklen_t n = sizeof(peer);
		int fd = accept4(server->listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
			refuse_for_descriptors(server);
			return;
		}
		if (fd < 0)
			return;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0) {
			close(fd);
			continue;
		}
		struct connection *c = connection_new(server, fd, &peer, begin);

		late += !c || listen_first(c, pace_clock() - begin);
		if (late == ACCEPTS_LATE) {
			uv_poll_stop(&server->accept); /* until on_pace() */
			server_pace(server);
			return;
		}
	}
}
