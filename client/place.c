#include "place.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Is @path a socket in a directory where only this user (and root) can have put it? */
static bool is_own(const char *path)
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat st;

	memcpy(directory, path, strlen(path) + 1);
	*strrchr(directory, '/') = 0;
	return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       (st.st_mode & 022) == 0 && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

const char *place_socket(char path[WIRE_SOCKET_BYTES])
{
	const char *named = getenv("TOKEND_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");

	if (named && named[0])
		return named;
	if (runtime && runtime[0] == '/' && wire_own_socket(runtime, geteuid(), path) && is_own(path))
		return path;
	if (wire_own_socket(NULL, geteuid(), path) && is_own(path))
		return path;
	return WIRE_SOCKET;
}
