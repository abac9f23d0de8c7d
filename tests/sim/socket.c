/* Connections between processes: whole packets, in order, after a delay; and polling. */
#include "tests/sim/world.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { QUEUE_BYTES = 256 << 10, QUEUE_PACKETS = 270, BACKLOG = 64, PLACES = 16 };

struct packet_in {
	struct packet_in *next;
	int64_t at;
	size_t n;
	unsigned files;
	struct file *file[2];
	uint8_t bytes[];
};

/* One end. Packets in its queue are on their way to it. */
struct end {
	struct end *peer; /* NULL: closed */
	struct proc *proc;
	int pid;
	uid_t uid;
	struct packet_in *first, **last;
	size_t bytes;
	unsigned packets;
	int64_t last_at;
	bool shut, reset; /* shutdown(); the peer closed with unread packets */
	bool closed;	  /* by its own process */
};

struct listening {
	char path[108];
	struct proc *proc;
	struct end *waiting[BACKLOG];
	unsigned count;
};

static struct listening *place[PLACES];
int64_t socket_delay_most = 20 * MICRO;

int proc_opened(struct proc *of);

/* ---- ends ---- */

static struct end *end_new(struct proc *p)
{
	struct end *e = __real_calloc(1, sizeof(*e));

	CHECK(e);
	e->last = &e->first;
	e->proc = p;
	if (p) {
		e->pid = p->pid;
		e->uid = p->uid;
	}
	return e;
}

static void drop_packets(struct end *e)
{
	while (e->first) {
		struct packet_in *p = e->first;

		e->first = p->next;
		for (unsigned i = 0; i < p->files; i++)
			file_put(p->file[i]);
		__real_free(p);
	}
	e->last = &e->first;
	e->bytes = e->packets = 0;
}

static void poke(struct end *e)
{
	if (e && e->proc && !e->closed)
		proc_poke(e->proc);
}

static void end_close(struct end *e)
{
	struct end *peer = e->peer;

	e->closed = true;
	if (peer) {
		peer->reset |= e->first != NULL;
		peer->peer = NULL;
		poke(peer);
	}
	drop_packets(e);
	e->peer = NULL;
}

static void socket_closed(struct file *f)
{
	struct end *e = f->of;

	if (e)
		end_close(e);
	__real_free(e);
}

/* A timer may find it freed: only the process is poked. */
static void arrive(void *proc)
{
	if (world_is_proc(proc))
		proc_poke(proc);
}

static void deliver(
	struct end *to, const void *bytes, size_t n, struct file *const *file, unsigned files)
{
	struct packet_in *p = __real_malloc(sizeof(*p) + n);
	int64_t at = fiber_now + (int64_t)draw((uint64_t)socket_delay_most + 1);

	CHECK(p);
	if (chance(200))
		at += (int64_t)draw(20 * MILLI);
	if (at < to->last_at)
		at = to->last_at;
	to->last_at = at;
	*p = (struct packet_in){.at = at, .n = n, .files = files};
	for (unsigned i = 0; i < files; i++)
		p->file[i] = file[i];
	memcpy(p->bytes, bytes, n);
	*to->last = p;
	to->last = &p->next;
	to->bytes += n;
	to->packets++;
	timer_at(at, arrive, to->proc);
}

static bool has_packet(const struct end *e)
{
	return e->first && e->first->at <= fiber_now;
}

bool socket_readable(const struct file *f)
{
	const struct end *e = f->of;

	if (f->kind == FILE_LISTENER)
		return ((const struct listening *)f->of)->count > 0;
	return e && (has_packet(e) || ((e->shut || !e->peer) && !e->first) || e->reset);
}

bool socket_sever(struct proc *p)
{
	struct end *found[FDS];
	unsigned n = 0;

	for (int i = 0; i < FDS; i++)
		if (p->fd[i] && p->fd[i]->kind == FILE_SOCKET && p->fd[i]->of &&
			((struct end *)p->fd[i]->of)->peer)
			found[n++] = p->fd[i]->of;
	if (n == 0)
		return false;

	struct end *e = found[draw(n)], *peer = e->peer;

	e->peer = peer->peer = NULL;
	drop_packets(e);
	drop_packets(peer);
	e->reset = chance(2);
	peer->reset = chance(2);
	poke(e);
	poke(peer);
	return true;
}

/* ---- listening and connecting ---- */

static void listener_closed(struct file *f)
{
	struct listening *l = f->of;

	for (unsigned i = 0; i < l->count; i++) {
		end_close(l->waiting[i]);
		__real_free(l->waiting[i]);
	}
	for (unsigned i = 0; i < PLACES; i++)
		if (place[i] == l)
			place[i] = NULL;
	__real_free(l);
}

struct file *socket_listen(struct proc *proc, const char *path)
{
	struct listening *l = __real_calloc(1, sizeof(*l));
	unsigned i = 0;

	CHECK(l);
	snprintf(l->path, sizeof(l->path), "%s", path);
	l->proc = proc;
	while (place[i])
		CHECK(++i < PLACES);
	place[i] = l;
	return file_new(FILE_LISTENER, l, listener_closed);
}

int __wrap_socket(int domain, int type, int protocol)
{
	system_call();
	CHECK(domain == AF_UNIX && (type & 15) == SOCK_SEQPACKET && protocol == 0);
	return fd_add(fiber_proc(), file_new(FILE_SOCKET, NULL, socket_closed));
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t n)
{
	const char *path = ((const struct sockaddr_un *)address)->sun_path;
	struct listening *l = NULL;

	(void)n;
	system_call();
	struct file *f = fd_get(fd);

	for (unsigned i = 0; i < PLACES; i++)
		if (place[i] && strcmp(place[i]->path, path) == 0)
			l = place[i];
	if (!f || !l) {
		errno = chance(2) ? ENOENT : ECONNREFUSED;
		return -1;
	}
	if (l->count == BACKLOG) {
		errno = EAGAIN;
		return -1;
	}
	struct end *mine = end_new(fiber_proc()), *theirs = end_new(l->proc);

	mine->peer = theirs;
	theirs->peer = mine;
	f->of = mine;
	l->waiting[l->count++] = theirs;
	proc_poke(l->proc);
	return 0;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *n, int flags)
{
	(void)address, (void)n, (void)flags;
	system_call();
	struct file *f = fd_get(fd);
	struct listening *l = f->of;

	if (l->count == 0) {
		errno = EAGAIN;
		return -1;
	}
	int new = fd_add(fiber_proc(), file_new(FILE_SOCKET, l->waiting[0], socket_closed));

	l->count--;
	memmove(l->waiting, l->waiting + 1, l->count * sizeof(l->waiting[0]));
	return new;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *n)
{
	struct file *f = fd_get(fd);
	struct end *e = f->of;

	(void)level, (void)n;
	if (name == SO_PEERCRED) {
		/* Of a peer that is gone, as the kernel does. */
		struct ucred *c = value;

		*c = (struct ucred){.pid = 1, .uid = 0};
		if (e->peer)
			*c = (struct ucred){.pid = e->peer->pid, .uid = e->peer->uid};
		else if (fiber_proc()->uid == 0)
			*c = (struct ucred){.pid = 1, .uid = 1000};
		return 0;
	}
	if (name == 77 && e->peer && e->peer->proc) { /* SO_PEERPIDFD */
		*(int *)value = proc_opened(e->peer->proc);
		return 0;
	}
	if (name == 83) { /* SO_PASSRIGHTS */
		*(int *)value = 0;
		return 0;
	}
	errno = ENOPROTOOPT;
	return -1;
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t n)
{
	(void)fd, (void)level, (void)name, (void)value, (void)n;
	return 0;
}

int __wrap_shutdown(int fd, int how)
{
	(void)how;
	struct file *f = fd_get(fd);
	struct end *e = f->of;

	e->shut = true;
	if (e->peer) {
		e->peer->shut = true;
		poke(e->peer);
	}
	return 0;
}

/* ---- packets ---- */

static ssize_t send_packet(
	struct end *e, const void *bytes, size_t n, struct file *const *file, unsigned files)
{
	struct end *to = e ? e->peer : NULL;

	if (!to || e->shut || to->closed) {
		errno = EPIPE;
		return -1;
	}
	if (to->bytes + n > QUEUE_BYTES || to->packets >= QUEUE_PACKETS) {
		errno = EAGAIN;
		return -1;
	}
	for (unsigned i = 0; i < files; i++)
		file[i]->refs++;
	deliver(to, bytes, n, file, files);
	return (ssize_t)n;
}

ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
	(void)flags;
	system_call();
	struct file *f = fd_get(fd);

	return f ? send_packet(f->of, bytes, n, NULL, 0) : -1;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct file *file[2];
	unsigned files = 0;

	(void)flags;
	system_call();
	struct file *f = fd_get(fd);

	for (struct cmsghdr *c = m->msg_controllen ? CMSG_FIRSTHDR(m) : NULL; c;
		c = CMSG_NXTHDR((struct msghdr *)m, c))
		for (; files < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); files++) {
			int number;

			memcpy(&number, CMSG_DATA(c) + files * sizeof(int), sizeof(int));
			file[files] = fd_get(number);
		}
	return f ? send_packet(f->of, m->msg_iov->iov_base, m->msg_iov->iov_len, file, files) : -1;
}

/* The next packet; NULL: errno, or the end (*end). */
static struct packet_in *next_packet(struct end *e, bool *end)
{
	*end = false;
	if (e->reset && (e->first == NULL || has_packet(e))) {
		e->reset = false;
		errno = ECONNRESET;
		return NULL;
	}
	if (has_packet(e))
		return e->first;
	*end = (e->shut || !e->peer) && !e->first;
	errno = EAGAIN;
	return NULL;
}

static void take_packet(struct end *e)
{
	struct packet_in *p = e->first;

	e->first = p->next;
	if (!e->first)
		e->last = &e->first;
	e->bytes -= p->n;
	e->packets--;
	poke(e->peer); /* it may send again */
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
	bool end;

	system_call();
	struct file *f = fd_get(fd);
	struct end *e = f ? f->of : NULL;
	struct packet_in *p = e ? next_packet(e, &end) : NULL;

	if (!e || !p) {
		if (e && end)
			m->msg_flags = 0, m->msg_controllen = 0;
		return e && end ? 0 : -1;
	}
	if (flags & MSG_PEEK) {
		m->msg_flags = 0;
		return (ssize_t)p->n;
	}
	take_packet(e);
	CHECK(p->n <= m->msg_iov->iov_len);
	memcpy(m->msg_iov->iov_base, p->bytes, p->n);
	m->msg_flags = 0;
	if (p->files == 0) {
		m->msg_controllen = 0;
	} else {
		struct cmsghdr *c = CMSG_FIRSTHDR(m);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(p->files * sizeof(int));
		for (unsigned i = 0; i < p->files; i++) {
			int number = fd_add(fiber_proc(), p->file[i]);

			memcpy(CMSG_DATA(c) + i * sizeof(int), &number, sizeof(int));
		}
		m->msg_controllen = CMSG_SPACE(p->files * sizeof(int));
	}
	ssize_t n = (ssize_t)p->n;

	__real_free(p);
	return n;
}

ssize_t __wrap_recv(int fd, void *to, size_t n, int flags)
{
	struct file *f = fd_get(fd);
	bool end;

	if (!(flags & MSG_PEEK))
		return __wrap_recvmsg(fd,
			&(struct msghdr){.msg_iov = &(struct iovec){to, n}, .msg_iovlen = 1}, 0);
	if (next_packet(f->of, &end))
		return 1;
	return end ? 0 : -1;
}

/* ---- polling ---- */

enum { STARVES_MS = 50 };

/* Does it wait for what has happened, with no packet under way between it and its daemon? */
static bool is_starved(const struct end *e)
{
	const struct proc *p = fiber_proc();

	return p->starves && e && e->peer && !e->shut && !e->first && !e->peer->first &&
	       p->starves(p, e->peer->proc);
}

int __wrap_ppoll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask)
{
	int64_t until = fiber_now + (t ? t->tv_sec * SECOND + t->tv_nsec : NEVER / 2);
	bool hurried = fiber_proc()->hurried && until > fiber_now + MILLI;

	if (hurried)
		until = fiber_now + (int64_t)draw(MILLI);
	(void)mask;
	CHECK(n == 1);
	system_call();
	for (;;) {
		struct file *f = p->fd >= 0 ? fd_get(p->fd) : NULL;
		struct end *e = f ? f->of : NULL;

		p->revents = 0;
		if (f && (p->events & POLLIN) && file_readable(f))
			p->revents |= POLLIN;
		if (e && (p->events & POLLOUT) &&
			(!e->peer || e->peer->packets < QUEUE_PACKETS / 2))
			p->revents |= POLLOUT;
		if (p->revents)
			return 1;
		bool starved = is_starved(e);
		int64_t begin = fiber_now,
			end = fiber_proc()->starves ? begin + STARVES_MS * MILLI : until;

		if (fiber_block(fiber_proc(), end < until ? end : until))
			continue;
		/* A side sleeps although a slot is ready: a wake-up was lost. */
		CHECK(!starved || fiber_now - begin < STARVES_MS * MILLI || !is_starved(e));
		if (fiber_now >= until)
			return hurried ? (errno = EINTR, -1) : 0;
	}
}
