#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { ACCEPTS_A_MS = 8 };

static bool may_connect(const struct acceptor *a, uid_t uid)
{
	const struct config *config = a->config;

	if (uid == a->users->web_uid)
		return true;
	for (uint32_t i = 0; i < config->allow_uids; i++)
		if (config->allow_uid[i] == uid)
			return true;
	return runs_privileged(config, uid);
}

/* Tells a client why it gets no connection. */
static void turn_away(struct connections *all, int fd, const struct fault *fault)
{
	struct wire w = {.op = WIRE_ERROR};

	wire_set_code(&w, fault->code);
	wire_set_text(&w, WIRE_FIELD, fault->field);
	wire_set_text(&w, WIRE_TEXT, fault->text);
	if (fault->passing)
		wire_set(&w, WIRE_PASSING, 1);
	send(fd, all->outgoing, wire_encode(&w, all->outgoing), MSG_DONTWAIT | MSG_NOSIGNAL);
	closer_close(fd);
}

/* Out of descriptors: closes the spare one to accept a client and refuse it. */
static void refuse_for_descriptors(struct acceptor *a)
{
	if (a->spare_fd < 0) {
		/* No spare one: without a pause until acceptor_clock() the loop would spin. */
		uv_poll_stop(&a->poll);
		return;
	}
	close(a->spare_fd);

	int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC);
	struct fault fault;

	fault_set_passing(&fault, FAULT_DESCRIPTORS, "connections",
		"the daemon is out of file descriptors; " PHRASE_NOFILE);
	if (fd >= 0)
		turn_away(a->connections, fd, &fault);
	a->spare_fd = fcntl(
		STDERR_FILENO, F_DUPFD_CLOEXEC, 0); /* if it fails, acceptor_clock() tries again */
	log_client(0, LOG_WARNING, "client refused: out of file descriptors; " PHRASE_NOFILE);
}

/* The user of client @fd, with one more connection. NULL: @fault. */
static struct user *admit(struct acceptor *a, int fd, struct ucred *peer, struct fault *fault)
{
	socklen_t n = sizeof(*peer);
	struct user *user = NULL;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &n) < 0)
		fault_errno(fault, errno, "connections", "%s", strerror(errno));
	else if (!may_connect(a, peer->uid))
		fault_set(fault, FAULT_PERMISSION, "allow_uids",
			"uid %u may not connect; add it to allow_uids", (unsigned)peer->uid);
	else if (!(user = user_of(a->users, peer->uid)))
		fault_memory(fault);
	return user && user_connect(user, a->connections->n + 1, fault) ? user : NULL;
}

/* Accepts one client. Returns false if none waits. */
static bool accept_one(struct acceptor *a)
{
	int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ucred peer = {0};
	struct fault fault;

	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		refuse_for_descriptors(a);
	if (fd < 0)
		return false;

	struct user *user = admit(a, fd, &peer, &fault);

	if (user) {
		connection_start(a->connections, fd, &peer, user);
		return true;
	}
	/* A stranger may have many uids. */
	log_client(fault.code == FAULT_PERMISSION ? (uid_t)LOG_STRANGERS : peer.uid, LOG_WARNING,
		"pid %d (uid %u) refused: %s: %s", (int)peer.pid, (unsigned)peer.uid, fault.field,
		fault.text);
	turn_away(a->connections, fd, &fault);
	return true;
}

static void on_again(uv_timer_t *timer)
{
	acceptor_clock(timer->data);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
	struct acceptor *a = poll->data;
	int n = 0;

	(void)status, (void)events;
	while (n < ACCEPTS_A_MS && accept_one(a))
		n++;
	if (n == ACCEPTS_A_MS) {
		uv_poll_stop(poll);
		uv_timer_start(&a->again, on_again, 1, 0);
	}
}

void acceptor_clock(struct acceptor *a)
{
	if (uv_is_closing((uv_handle_t *)&a->poll))
		return;
	if (a->spare_fd < 0)
		a->spare_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
	if (a->spare_fd >= 0 && !uv_is_active((uv_handle_t *)&a->poll))
		uv_poll_start(&a->poll, UV_READABLE, on_accept);
}

void acceptor_start(struct acceptor *a)
{
	users_find_web(a->users);
	a->spare_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
	uv_timer_init(a->connections->loop, &a->again);
	uv_poll_init(a->connections->loop, &a->poll, a->fd);
	a->poll.data = a->again.data = a;
	uv_poll_start(&a->poll, UV_READABLE, on_accept);
}

void acceptor_stop(struct acceptor *a)
{
	uv_close((uv_handle_t *)&a->poll, NULL);
	uv_close((uv_handle_t *)&a->again, NULL);
	if (a->spare_fd >= 0)
		close(a->spare_fd);
	a->spare_fd = -1;
}
