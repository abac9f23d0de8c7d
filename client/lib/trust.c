/*
 * The daemon provides the tokens that a model is trained on, so a path alone is not enough: in a
 * directory that others may write, anybody could listen instead of the daemon. SO_PEERCRED names
 * the user that called listen(). It must be root (systemd listens for the service), our own user,
 * or a user in $TOKEND_TRUST_UID.
 *
 * In a rootless container all users from outside appear as the overflow uid. There the socket's
 * directory is checked instead: it must belong to that uid and must not be writable by all.
 */
#include "client/lib/trust.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
	char directory[108];
	const char *slash = strrchr(path, '/');
	size_t n = slash ? (size_t)(slash - path) : 0;
	struct stat st;

	if (!slash)
		snprintf(directory, sizeof(directory), ".");
	else
		snprintf(directory, sizeof(directory), "%.*s", n > 0 ? (int)n : 1, path);
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

bool trust_peer(int fd, const char *path, struct fault *fault)
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
