/*
 * SOCK_SEQPACKET keeps messages whole and in order, so there is no framing. Three cases need care:
 * unexpected descriptors, truncated packets, and the ECONNRESET that the kernel reports before the
 * last packets of a peer that closed.
 */
#include "client/lib/connect.h"

#include "client/lib/process.h"
#include "client/lib/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FDS_MAX = 8 }; /* room to receive, so that all but two can be closed */

const char *link_why(const char *path, int error, char text[LINK_WHY_BYTES])
{
	char directory[WIRE_SOCKET_BYTES];
	size_t n = strlen(path), i = 1;

	snprintf(text, LINK_WHY_BYTES, "%s", strerror(error));
	if (error != EACCES || n >= sizeof(directory))
		return text;
	for (; i < n; i++) {
		memcpy(directory, path, i);
		directory[i] = 0;
		if (path[i] == '/' && faccessat(AT_FDCWD, directory, X_OK, AT_EACCESS) != 0 &&
			errno == EACCES)
			break;
	}
	if (i < n)
		snprintf(text, LINK_WHY_BYTES, "uid %u may not enter directory %s",
			(unsigned)geteuid(), directory);
	else
		snprintf(text, LINK_WHY_BYTES, "uid %u may not write to this socket",
			(unsigned)geteuid());
	return text;
}

static int not_there(struct fault *fault, const char *path, int error)
{
	char why[LINK_WHY_BYTES];

	fault_errno(
		fault, error, "socket", "no daemon at %s: %s", path, link_why(path, error, why));
	return -1;
}

/* A descriptor, or -1. */
static int connect_to(const char *path, struct fault *fault)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int room = 2 * LIMIT_PACKET_BYTES;
	size_t n = strlen(path);

	if (n >= sizeof(address.sun_path))
		return not_there(fault, path, ENAMETOOLONG);
	memcpy(address.sun_path, path, n);

	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return not_there(fault, path, errno);
	/* Room for the longest packet, if the system allows it. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		int error = errno;

		close(fd);
		return not_there(fault, path, error);
	}
	return fd;
}

static bool send_hello(int fd, enum link_peer as, void *buffer, struct fault *fault)
{
	struct wire hello = {.op = WIRE_HELLO};
	char host[LIMIT_NAME_BYTES + 1] = "";

	wire_set(&hello, WIRE_VERSION_KEY, WIRE_VERSION);
	if (as == LINK_TRAINER) {
		uint64_t process = process_number();

		if (gethostname(host, sizeof(host)) != 0)
			host[0] = 0;
		host[sizeof(host) - 1] = 0;
		wire_set_text(&hello, WIRE_HOST, host);
		if (process)
			wire_set(&hello, WIRE_PROCESS, process);
	}
	return link_send(fd, &hello, buffer, fault) || link_closed(fault);
}

int link_open(const char *path, enum link_peer as, void *buffer, struct fault *fault)
{
	int fd = connect_to(path, fault);

	if (fd < 0)
		return -1;
	if (trust_peer(fd, path, fault) && send_hello(fd, as, buffer, fault))
		return fd;
	close(fd);
	return -1;
}

void packet_close(struct packet *packet)
{
	for (unsigned i = 0; i < packet->fds; i++)
		if (packet->fd[i] >= 0)
			close(packet->fd[i]);
	packet->fds = 0;
}

/* Keeps two descriptors and closes the rest. False if there were more. */
static bool keep_fds(struct packet *packet, struct msghdr *m)
{
	bool fine = true;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (packet->fds < 2) {
				packet->fd[packet->fds++] = fd;
			} else {
				close(fd);
				fine = false;
			}
		}
	}
	return fine && !(m->msg_flags & MSG_CTRUNC);
}

static bool message_unknown(struct fault *fault, const char *field, const char *text)
{
	return fault_set(fault, FAULT_PROTOCOL, field, "%s", text);
}

/*
 * Receives a packet's bytes and descriptors; returns recvmsg()'s result. If there are more than our
 * packets have, @whole is false and packet->fault is set.
 */
static ssize_t receive(int fd, struct packet *packet, bool *whole)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec io = {packet->bytes, sizeof(packet->bytes)};
	struct msghdr m = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n;

	do
		n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return n;
	*whole = true;
	if (!keep_fds(packet, &m))
		*whole = message_unknown(
			&packet->fault, "descriptors", "more than the two of a feed");
	if (m.msg_flags & MSG_TRUNC)
		*whole = message_unknown(&packet->fault, "packet", "longer than 128 KiB");
	return n;
}

enum link_event link_receive(int fd, struct packet *packet)
{
	packet_close(packet);

	bool whole;
	ssize_t n = receive(fd, packet, &whole);

	/* If the peer closed with bytes of ours unread, its last packets follow the ECONNRESET. */
	if (n < 0 && errno == ECONNRESET)
		n = receive(fd, packet, &whole);
	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? LINK_NOTHING : LINK_CLOSED;
	if (n == 0)
		return LINK_CLOSED;
	if (!whole)
		return LINK_FAULT;
	if (n == 1)
		return LINK_WAKE;
	if (!wire_decode(&packet->wire, packet->bytes, (size_t)n, &packet->fault))
		return LINK_FAULT;
	if (packet->fds && packet->wire.op != WIRE_FEED) {
		message_unknown(
			&packet->fault, "descriptors", "sent with a message that carries none");
		return LINK_FAULT;
	}
	return LINK_MESSAGE;
}

bool link_send(int fd, const struct wire *wire, void *buffer, struct fault *fault)
{
	size_t n = wire_encode(wire, buffer);

	if (n == 0) {
		fault_set(fault, FAULT_ARGUMENT, "message", "longer than %d bytes",
			LIMIT_PACKET_BYTES);
		fault->error = EMSGSIZE;
		return false;
	}

	ssize_t sent;

	do
		sent = send(fd, buffer, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return true;
	fault_errno(fault, errno, "socket", "cannot send to the daemon: %s", strerror(errno));
	fault->passing = fault->error == EAGAIN;
	return false;
}

bool link_closed(const struct fault *fault)
{
	return fault->error == EPIPE || fault->error == ECONNRESET;
}

void link_wake(int fd)
{
	ssize_t ignored = send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);

	(void)ignored;
}
