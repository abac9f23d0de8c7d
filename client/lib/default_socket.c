#include "client/lib/default_socket.h"

#include "client/lib/tokend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* True if @path is a socket that only this user (or root) can have created. */
static bool is_own(const char *path)
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat st;

	memcpy(directory, path, strlen(path) + 1);
	*strrchr(directory, '/') = 0;
	return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       (st.st_mode & 022) == 0 && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* True if a process listens at @path, or if that cannot be found out. */
static bool is_live(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return true;
	memcpy(to.sun_path, path, strlen(path) + 1);
	bool live = connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 ||
		    (errno != ECONNREFUSED && errno != ENOENT);

	close(fd);
	return live;
}

const char *default_socket(char path[WIRE_SOCKET_BYTES])
{
	const char *named = getenv("TOKEND_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");

	if (named && named[0])
		return named;
	for (int i = 0; i < 2; i++) {
		bool known = i == 0 ? runtime && runtime[0] == '/' &&
					      wire_own_socket(runtime, geteuid(), path)
				    : wire_own_socket(NULL, geteuid(), path);

		/* A killed daemon leaves its socket, and may come back. Without a service
		 * at WIRE_SOCKET the dead socket is used. */
		if (known && is_own(path) && (is_live(path) || !is_live(WIRE_SOCKET)))
			return path;
	}
	return WIRE_SOCKET;
}

int tokend_default_socket(char *path, size_t capacity)
{
	char own[WIRE_SOCKET_BYTES];
	const char *found = default_socket(own);

	if (strlen(found) >= capacity)
		return TOKEND_EMEMORY;
	memcpy(path, found, strlen(found) + 1);
	return 0;
}
