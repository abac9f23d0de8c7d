/*
 * SOCK_SEQPACKET keeps messages whole and in order, so there is no framing. Three cases need care:
 * unexpected descriptors, truncated packets, and the ECONNRESET that the kernel reports before the
 * last packets of a peer that closed.
 */
#include "client/lib/link.h"

#include "client/lib/tokend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- whom to trust ---- */

enum { NOBODY = 65534 }; /* the kernel's overflow uid */

/* True if some users have no number in this process's user namespace. */
static bool in_rootless_container(void)
{
	unsigned inside = 1, outside = 1, count = 0;
	FILE *map = fopen("/proc/self/uid_map", "re");

	if (!map)
		return false;
	bool whole = fscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 &&
		     outside == 0 && count == UINT32_MAX;

	fclose(map);
	return !whole;
}

static bool directory_is_closed(const char *path)
{
	const char *slash = strrchr(path, '/');
	char directory[WIRE_SOCKET_BYTES] = ".";
	struct stat st;

	if (slash)
		snprintf(directory, sizeof(directory), "%.*s",
			slash > path ? (int)(slash - path) : 1, path);
	return stat(directory, &st) == 0 && st.st_uid == NOBODY && !(st.st_mode & S_IWOTH);
}

/* True if $TOKEND_TRUST_UID, numbers separated by commas, contains @uid. */
static bool is_named(uid_t uid)
{
	const char *list = getenv("TOKEND_TRUST_UID");
	char own[16];
	size_t n = (size_t)snprintf(own, sizeof(own), "%u", (unsigned)uid);

	while (list && *list) {
		size_t length = strcspn(list, ",");

		if (length == n && memcmp(list, own, n) == 0)
			return true;
		list += length + (list[length] == ',');
	}
	return false;
}

/* If everybody has the overflow uid, we may have it too. It does not prove that the user is ours.
 */
static bool is_ours(uid_t uid, const char *path)
{
	if (uid == NOBODY && in_rootless_container())
		return directory_is_closed(path);
	return uid == 0 || uid == geteuid();
}

/* Checks the user of the process that listens at @path, to which @fd is connected. */
static bool trust_peer(int fd, const char *path, struct fault *fault)
{
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
		return fault_set(fault, FAULT_PERMISSION, "socket",
			"cannot find out which user listens at %s; set it to the daemon's socket",
			path);
	if (is_ours(peer.uid, path) || is_named(peer.uid))
		return true;
	return fault_set(fault, FAULT_PERMISSION, "socket",
		"uid %u (pid %d) listens at %s, neither root nor uid %u; set it to the daemon's "
		"socket, or set TOKEND_TRUST_UID=%u if that is the daemon's user",
		(unsigned)peer.uid, (int)peer.pid, path, (unsigned)geteuid(), (unsigned)peer.uid);
}

/* ---- connecting ---- */

enum { FDS_MAX = 8 }; /* room to receive, so that all but two can be closed */

const char *link_why(const char *path, int error, char text[LINK_WHY_BYTES])
{
	char directory[WIRE_SOCKET_BYTES];
	const char *slash = path;

	snprintf(text, LINK_WHY_BYTES, "%s", strerror(error));
	if (error != EACCES || strlen(path) >= sizeof(directory))
		return text;
	snprintf(text, LINK_WHY_BYTES, "uid %u may not write to this socket", (unsigned)geteuid());
	while ((slash = strchr(slash + 1, '/'))) {
		snprintf(directory, sizeof(directory), "%.*s", (int)(slash - path), path);
		if (faccessat(AT_FDCWD, directory, X_OK, AT_EACCESS) == 0 || errno != EACCES)
			continue;
		snprintf(text, LINK_WHY_BYTES, "uid %u may not enter directory %s",
			(unsigned)geteuid(), directory);
		break;
	}
	return text;
}

static int not_there(struct fault *fault, const char *path, int error)
{
	char why[LINK_WHY_BYTES];

	fault_errno(fault, error, "socket", "%s %s: %s",
		error == EAGAIN ? "too many clients wait at" : "no daemon at", path,
		link_why(path, error, why));
	return -1;
}

/* A descriptor, or -1. An operator waits while the queue of clients is full. A trainer has more to
 * do, and tries again. */
static int connect_to(const char *path, enum link_peer as, struct fault *fault)
{
	const struct timeval patience = {.tv_sec = 5};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int flags = as == LINK_TRAINER ? SOCK_NONBLOCK : 0;
	const int room = 2 * LIMIT_PACKET_BYTES;
	size_t n = strlen(path);

	if (n >= sizeof(address.sun_path))
		return not_there(fault, path, ENAMETOOLONG);
	memcpy(address.sun_path, path, n);

	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);

	if (fd < 0)
		return not_there(fault, path, errno);
	/* Room for the longest packet, if the system allows it. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (flags == 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		int error = errno;

		close(fd);
		return not_there(fault, path, error);
	}
	if (flags == 0)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static bool send_hello(int fd, enum link_peer as, void *buffer, struct fault *fault)
{
	struct wire hello = {.op = WIRE_HELLO};
	char host[LIMIT_NAME_BYTES + 1] = "";

	wire_set(&hello, WIRE_VERSION_KEY, WIRE_VERSION);
	if (as == LINK_TRAINER) {
		if (gethostname(host, sizeof(host) - 1) != 0)
			host[0] = 0;
		wire_set_text(&hello, WIRE_HOST, host);
		wire_set(&hello, WIRE_PROCESS, process_number());
	}
	return link_send(fd, &hello, buffer, fault) || link_closed(fault);
}

int link_open(const char *path, enum link_peer as, void *buffer, struct fault *fault)
{
	int fd = connect_to(path, as, fault);

	if (fd < 0)
		return -1;
	if (trust_peer(fd, path, fault) && send_hello(fd, as, buffer, fault))
		return fd;
	close(fd);
	return -1;
}

void link_close(int fd)
{
	if (fd < 0)
		return;
	shutdown(fd, SHUT_RDWR);
	close(fd);
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
	return fine;
}

static const char too_few[] = "this process has too few file descriptors to receive a feed";

/* Receives a packet's bytes and descriptors; returns recvmsg()'s result. *@wrong is set if there
 * are more than our packets have, or this process may open. */
static ssize_t receive(int fd, struct packet *packet, const char **wrong)
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
	if (n >= 0 && !keep_fds(packet, &m))
		*wrong = "more descriptors than the two of a feed";
	else if (n >= 0 && (m.msg_flags & MSG_CTRUNC))
		*wrong = too_few;
	if (n >= 0 && (m.msg_flags & MSG_TRUNC))
		*wrong = "longer than 128 KiB";
	return n;
}

enum link_event link_receive(int fd, struct packet *packet)
{
	const char *wrong = NULL;
	ssize_t n;

	packet_close(packet);
	n = receive(fd, packet, &wrong);
	/* If the peer closed with bytes of ours unread, its last packets follow the ECONNRESET. */
	if (n < 0 && errno == ECONNRESET)
		n = receive(fd, packet, &wrong);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return LINK_NOTHING;
	if (n <= 0)
		return LINK_CLOSED;
	if (n == 1 && !wrong)
		return LINK_WAKE;
	if (!wrong && !wire_decode(&packet->wire, packet->bytes, (size_t)n, &packet->fault))
		return LINK_FAULT;
	if (!wrong && packet->fds && packet->wire.op != WIRE_FEED)
		wrong = "descriptors with a message that carries none";
	if (!wrong)
		return LINK_MESSAGE;
	fault_set(&packet->fault, wrong == too_few ? FAULT_DESCRIPTORS : FAULT_PROTOCOL, "packet",
		"%s", wrong);
	return LINK_FAULT;
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

/* ---- programs ---- */

extern char **environ;

int process_start(pid_t *pid, char *const argv[], int fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int error;

	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(
		&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if (!(error = posix_spawn_file_actions_adddup2(&files, fd, 1)) &&
		!(error = posix_spawn_file_actions_adddup2(&files, 1, 2)) &&
		!(error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0)))
		error = posix_spawn(pid, argv[0], &files, &attributes, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	if (error)
		*pid = 0;
	return error;
}

/* ---- places ---- */

void places_read(struct places *places, const char *option, const char *config)
{
	const struct place_setting setting = {
		.option = option,
		.environment = getenv("TOKEND_SOCKET"),
		.config = config,
		.runtime = getenv("XDG_RUNTIME_DIR"),
		.uid = geteuid(),
	};

	places_list(places, &setting);
}

bool place_may_use(const struct place *place, char why[LIMIT_TEXT_BYTES])
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat of, st;

	if (place->from != PLACE_OWN && place->from != PLACE_PRIVATE)
		return true;
	snprintf(directory, sizeof(directory), "%s", place->path);
	*strrchr(directory, '/') = 0;
	if (lstat(directory, &of) < 0 || lstat(place->path, &st) < 0)
		snprintf(why, LIMIT_TEXT_BYTES, "%s", strerror(errno));
	else if (!S_ISDIR(of.st_mode) || of.st_uid != geteuid() || (of.st_mode & 022))
		snprintf(why, LIMIT_TEXT_BYTES, "its directory does not belong to uid %u alone",
			(unsigned)geteuid());
	else if (!S_ISSOCK(st.st_mode))
		snprintf(why, LIMIT_TEXT_BYTES, "not a socket");
	else
		return true;
	return false;
}

bool place_is_live(const char *path, int *error)
{
	struct fault fault = {0};
	int fd = connect_to(path, LINK_TRAINER, &fault);

	*error = fault.error;
	if (fd >= 0)
		close(fd);
	return *error != ECONNREFUSED && *error != ENOENT && *error != EACCES &&
	       *error != ENOTDIR && *error != EPROTOTYPE && *error != ENAMETOOLONG;
}

const char *places_choose(const struct places *places)
{
	const char *exists = NULL;
	char why[LIMIT_TEXT_BYTES];
	int error;

	if (places->n == 1)
		return places->place[0].path;
	for (unsigned i = 0; i < places->n && places->place[i].from == PLACE_OWN; i++) {
		const char *path = places->place[i].path;

		if (!place_may_use(&places->place[i], why))
			continue;
		if (place_is_live(path, &error))
			return path;
		if (!exists)
			exists = path;
	}
	/* The service's socket is tried only if there is a choice: a try costs it a connection. */
	return exists && !place_is_live(WIRE_SOCKET, &error) ? exists : WIRE_SOCKET;
}

void places_tell(const struct place *place, unsigned n, char text[LIMIT_TEXT_BYTES])
{
	static const char *const from[] = {[PLACE_ENVIRONMENT] = ", from $TOKEND_SOCKET",
		[PLACE_CONFIG] = ", from the config",
		[PLACE_PRIVATE] = ", private",
		[PLACE_DEFAULT] = NULL};
	char why[LIMIT_TEXT_BYTES];
	size_t used = 0;
	int error;

	for (unsigned i = 0; i < n && used < LIMIT_TEXT_BYTES; i++) {
		const struct place *p = &place[i];

		if (place_may_use(p, why) && place_is_live(p->path, &error))
			snprintf(why, sizeof(why), "does not answer");
		else if (place_may_use(p, why))
			link_why(p->path, error, why);
		used += (size_t)snprintf(text + used, LIMIT_TEXT_BYTES - used, "%s%s%s (%s)",
			i ? ", " : "", p->path, from[p->from] ? from[p->from] : "", why);
	}
}

int tokend_default_socket(char *path, size_t capacity)
{
	struct places places;

	places_read(&places, NULL, NULL);

	const char *found = places_choose(&places);

	return (size_t)snprintf(path, capacity, "%s", found) < capacity ? 0 : TOKEND_EMEMORY;
}
