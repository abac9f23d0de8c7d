#include "daemon/control/host.h"

#include "daemon/config/config.h"
#include "proto/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 256 };

/* ---- where ---- */

/* Makes the directory of socket @path, accessible to this user only. */
static bool take_directory(const char *path, struct fault *fault)
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat st;

	memcpy(directory, path, strlen(path) + 1);
	*strrchr(directory, '/') = 0;
	if (mkdir(directory, 0700) < 0 && errno != EEXIST)
		return fault_errno(fault, errno, "socket",
			"socket: cannot create %s: %s; choose a socket with --socket", directory,
			strerror(errno));
	if (lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
		(st.st_mode & 077) == 0)
		return true;
	return fault_set(fault, FAULT_ARGUMENT, "socket",
		"socket: %s must be a directory of uid %u with mode 0700; remove it, set "
		"XDG_RUNTIME_DIR to a directory of yours, or choose a socket with --socket",
		directory, (unsigned)geteuid());
}

const char *listener_place(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault)
{
	const char *given = getenv("TOKEND_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");

	if (given && given[0]) {
		log_line(LOG_NOTE, "socket: %s, from $TOKEND_SOCKET%s", given,
			config->has_socket ? ", which comes before the config's" : "");
		return given;
	}
	if (config->has_socket || config_may_write("/run/tokend"))
		return config->socket;
	if (!runtime || !config_may_write(runtime) ||
		!place_own(runtime, geteuid(), "tokend.sock", path))
		place_own(NULL, geteuid(), "tokend.sock", path);
	if (!take_directory(path, fault))
		return NULL;
	log_line(LOG_NOTE,
		"socket: %s, because uid %u may not create %s; this user's trainers and tokctl "
		"look there too",
		path, (unsigned)geteuid(), config->socket);
	return path;
}

/* ---- listening ---- */

/* Is @fd still the file at @path? */
static bool is_file_at(int fd, const char *path)
{
	struct stat ours, now;

	return fstat(fd, &ours) == 0 && stat(path, &now) == 0 && ours.st_ino == now.st_ino &&
	       ours.st_dev == now.st_dev;
}

static bool name_files(struct listener *l, const char *path, struct fault *fault)
{
	if (strlen(path) >= sizeof(l->path))
		return fault_set(fault, FAULT_ARGUMENT, "socket",
			"socket: the path %s is longer than %zu bytes; choose a shorter one", path,
			sizeof(l->path) - 1);
	const char *slash = strrchr(path, '/');

	memcpy(l->path, path, strlen(path) + 1);
	snprintf(l->lock, sizeof(l->lock), "%s.lock", path);
	snprintf(l->log, sizeof(l->log), "%s.log", path);
	snprintf(l->parent, sizeof(l->parent), "%.*s", slash ? (int)(slash - path) : 0, path);
	return true;
}

bool listener_take(struct listener *l, const char *path, int lock_fd, struct fault *fault)
{
	*l = (struct listener){.fd = -1, .lock_fd = -1, .handed = true};
	if (!name_files(l, path, fault))
		return false;
	if (!is_file_at(lock_fd, l->lock) || flock(lock_fd, LOCK_EX | LOCK_NB) < 0 ||
		fcntl(lock_fd, F_SETFD, FD_CLOEXEC) < 0)
		return fault_set(fault, FAULT_ARGUMENT, "socket",
			"--private %d: not a lock on %s; lock that file and pass its descriptor",
			lock_fd, l->lock);
	l->lock_fd = lock_fd;
	return true;
}

/* Takes the lock next to the socket. Tries again if its former owner unlinks the file meanwhile. */
static bool take_lock(struct listener *l, struct fault *fault)
{
	for (;;) {
		l->lock_fd = open(l->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (l->lock_fd < 0) {
			int error = errno;

			return fault_errno(fault, error, "socket",
				"socket: uid %u cannot create %s: %s; %s, or choose another socket",
				(unsigned)geteuid(), l->lock, strerror(error),
				error == ENOENT ? "create its directory"
						: "have its owner allow that");
		}
		if (flock(l->lock_fd, LOCK_EX | LOCK_NB) < 0)
			return fault_set(fault, FAULT_ARGUMENT, "socket",
				"socket: another tokend listens at %s; stop it (tokctl stop "
				"--socket), or choose another --socket",
				l->path);
		if (is_file_at(l->lock_fd, l->lock))
			return true;
		close(l->lock_fd);
	}
}

/* Does a process listen there? systemd and other programs do not take our lock. */
static bool is_live(const struct sockaddr_un *to)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool dead;

	if (fd < 0)
		return true;
	socket_prepare(fd);
	dead = connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0 && errno == ECONNREFUSED;
	close(fd);
	return !dead;
}

/* Removes a socket at which nobody listens, and nothing else. False: a process listens there. */
static bool clear(const struct sockaddr_un *to)
{
	struct stat st;

	if (lstat(to->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return true;
	if (is_live(to))
		return false;
	unlink(to->sun_path);
	return true;
}

static struct sockaddr_un address(const struct listener *l)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	strcpy(to.sun_path, l->path);
	return to;
}

static bool bind_own(struct listener *l, struct fault *fault)
{
	const struct sockaddr_un to = address(l);

	l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return fault_errno(fault, errno, "socket", "socket: %s", strerror(errno));
	if (!clear(&to))
		return fault_set(fault, FAULT_ARGUMENT, "socket",
			"socket: another program listens at %s; stop it, or choose another "
			"--socket",
			l->path);
	socket_prepare(l->fd);

	/* chmod() would follow a link that another user of the directory put there. */
	mode_t mask = umask(0111);

	l->bound = bind(l->fd, (const struct sockaddr *)&to, sizeof(to)) == 0;
	umask(mask);
	if (!l->bound || listen(l->fd, BACKLOG) < 0)
		return fault_errno(fault, errno, "socket", "socket: cannot listen at %s: %s",
			l->path, strerror(errno));
	return true;
}

bool listener_open(struct listener *l, const char *path, struct fault *fault)
{
	if (l->handed)
		return bind_own(l, fault);
	*l = (struct listener){.fd = notify_listen_fd(), .lock_fd = -1};
	if (l->fd >= 0) {
		socket_prepare(l->fd);
		return (fcntl(l->fd, F_SETFD, FD_CLOEXEC) == 0 &&
			       fcntl(l->fd, F_SETFL, O_NONBLOCK) == 0) ||
		       fault_errno(fault, errno, "socket", "the socket from systemd: %s",
			       strerror(errno));
	}
	if (!name_files(l, path, fault))
		return false;
	if (l->parent[0])
		(void)!mkdir(l->parent, 0755); /* if it fails, take_lock() does with the reason */
	if (take_lock(l, fault) && bind_own(l, fault))
		return true;
	if (l->fd >= 0)
		close(l->fd);
	if (l->lock_fd >= 0)
		close(l->lock_fd);
	l->fd = l->lock_fd = -1;
	return false;
}

/*
 * Removes the files next to the socket, while we have the lock: nobody else writes to them then.
 * Also called by a signal handler. The log was opened by the process that started us.
 */
static void remove_files(const struct listener *l)
{
	if (l->handed && is_file_at(STDERR_FILENO, l->log))
		unlink(l->log);
	unlink(l->lock);
	if (l->handed && l->parent[0])
		(void)!rmdir(l->parent); /* unless other files are in it */
}

void listener_remove(const struct listener *l)
{
	if (l->bound)
		unlink(l->path);
	if (l->lock_fd >= 0)
		remove_files(l);
}

void listener_close(struct listener *l)
{
	/* The packets of clients that nobody accepted end with it. */
	if (l->bound && !socket_refuses(l->fd))
		shutdown(l->fd, SHUT_RDWR); /* the end of the process closes it */
	else if (l->fd >= 0)
		close(l->fd);
	if (l->lock_fd >= 0) {
		const struct sockaddr_un to = address(l);

		clear(&to);
		remove_files(l);
		close(l->lock_fd);
	}
	l->fd = l->lock_fd = -1;
	l->bound = false;
}
