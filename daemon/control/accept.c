#include "daemon/control/accept.h"

#include "daemon/control/log.h"
#include "daemon/control/runs.h"
#include "proto/phrases.h"

#include <errno.h>
#include <unistd.h>

enum {
	/* Per turn of the loop: a refused client keeps its descriptor until the turn ends. */
	ACCEPTS_A_TURN = 16,
	/* Clients without credit, per millisecond: the queue may also hold clients that have some.
	 */
	ACCEPTS_LATE = 16,
	AGAIN_MS = 1,
};

bool acceptor_allows(const struct acceptor *a, uid_t uid)
{
	const struct config *config = a->config;

	if (uid == 0 || uid == geteuid())
		return true;
	for (uint32_t i = 0; i < config->allow_uids; i++)
		if (config->allow_uid[i] == uid)
			return true;
	return runs_privileged(config, uid);
}

static bool may_stay(const struct acceptor *a, struct connection *c, struct fault *fault)
{
	if (c->account != c->uid)
		return fault_set(fault, FAULT_PERMISSION, "allow_uids",
			"uid %u may not connect; add it to allow_uids", (unsigned)c->uid);
	c->quota = quota_of(a->quotas, c->uid);
	if (!quota_connect(a->quotas, c->quota, c->all->n, fault))
		return false;
	if (c->all->n > a->most)
		return fault_set_passing(fault, FAULT_DESCRIPTORS, "connections",
			"all %u connections that the file descriptor limit allows are in "
			"use; " PHRASE_NOFILE,
			a->most);
	return true;
}

/* Tells a client why it gets no connection. The fault passes, so the client tries again. */
static void turn_away(struct connections *all, int fd)
{
	struct wire w = {.op = WIRE_ERROR};

	wire_set_code(&w, FAULT_DESCRIPTORS);
	wire_set_text(&w, WIRE_FIELD, "connections");
	wire_set_text(&w, WIRE_TEXT, "the daemon is out of file descriptors; " PHRASE_NOFILE);
	wire_set(&w, WIRE_PASSING, 1);
	send(fd, all->outgoing, wire_encode(&w, all->outgoing), MSG_DONTWAIT | MSG_NOSIGNAL);
	closer_close(&all->closers, fd);
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

	if (fd >= 0)
		turn_away(a->connections, fd);
	a->spare_fd = dup(STDERR_FILENO); /* if it fails, acceptor_clock() tries again */
	log_client(0, LOG_WARNING, "client refused: out of file descriptors; " PHRASE_NOFILE);
}

/* Accepts one client. Returns false if none waits. Sets *@late if the client has no credit. */
static bool accept_one(struct acceptor *a, bool *late)
{
	uint64_t begin = pace_clock();
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);
	int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct fault fault;

	*late = false;
	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		refuse_for_descriptors(a);
	if (fd < 0)
		return false;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0) {
		closer_close(&a->connections->closers, fd);
		return true;
	}
	uid_t account = acceptor_allows(a, peer.uid) ? peer.uid : (uid_t)LOG_STRANGERS;
	struct connection *c = connection_new(a->connections, fd, &peer, account, begin);

	if (c && !may_stay(a, c, &fault))
		connection_refuse(c, 0, &fault);
	*late = !c || connection_start(c, pace_clock() - begin);
	return true;
}

static void on_again(uv_timer_t *timer)
{
	acceptor_clock(timer->data);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
	struct acceptor *a = poll->data;
	bool late;

	(void)status, (void)events;
	for (int i = 0, lates = 0; i < ACCEPTS_A_TURN && accept_one(a, &late); i++) {
		lates += late;
		if (lates < ACCEPTS_LATE)
			continue;
		uv_poll_stop(&a->poll);
		uv_timer_start(&a->again, on_again, AGAIN_MS, 0);
	}
}

void acceptor_clock(struct acceptor *a)
{
	if (uv_is_closing((uv_handle_t *)&a->poll))
		return;
	if (a->spare_fd < 0)
		a->spare_fd = dup(STDERR_FILENO);
	if (a->spare_fd >= 0 && !uv_is_active((uv_handle_t *)&a->poll))
		uv_poll_start(&a->poll, UV_READABLE, on_accept);
}

void acceptor_start(struct acceptor *a)
{
	uv_loop_t *loop = a->connections->loop;

	a->spare_fd = dup(STDERR_FILENO);
	uv_timer_init(loop, &a->again);
	uv_poll_init(loop, &a->poll, a->fd);
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
