#include "daemon/control/place.h"

#include "daemon/control/log.h"
#include "proto/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

const char *place_listen(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault)
{
	struct place_setting setting = {
		.environment = getenv("TOKEND_SOCKET"),
		.config = config->has_socket ? config->socket : NULL,
		.runtime = getenv("XDG_RUNTIME_DIR"),
		.uid = geteuid(),
	};
	struct places places;

	if (setting.runtime && !config_may_write(setting.runtime))
		setting.runtime = NULL;
	places_list(&places, &setting);
	if (places.place[0].from == PLACE_ENVIRONMENT) {
		log_line(LOG_NOTE, "socket: %s, from $TOKEND_SOCKET%s", places.place[0].path,
			config->has_socket ? ", which comes before the config's" : "");
		return getenv("TOKEND_SOCKET");
	}
	if (config->has_socket || config_may_write("/run/tokend"))
		return config->socket;
	strcpy(path, places.place[0].path);
	if (!take_directory(path, fault))
		return NULL;
	log_line(LOG_NOTE,
		"socket: %s, because uid %u may not create %s; this user's trainers and tokctl "
		"look there too",
		path, (unsigned)geteuid(), config->socket);
	return path;
}
