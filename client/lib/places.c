#include "client/lib/places.h"

#include "client/lib/connect.h"
#include "client/lib/tokend.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

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

__attribute__((format(printf, 2, 3))) static bool refuse(
	char why[LIMIT_TEXT_BYTES], const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, LIMIT_TEXT_BYTES, format, args);
	va_end(args);
	return false;
}

bool place_may_use(const struct place *place, char why[LIMIT_TEXT_BYTES])
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat st;

	if (place->from != PLACE_OWN && place->from != PLACE_PRIVATE)
		return true;
	memcpy(directory, place->path, strlen(place->path) + 1);
	*strrchr(directory, '/') = 0;
	if (lstat(directory, &st) < 0)
		return refuse(why, "%s", strerror(errno));
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
		return refuse(
			why, "its directory does not belong to uid %u alone", (unsigned)geteuid());
	if (lstat(place->path, &st) < 0)
		return refuse(why, "%s", strerror(errno));
	return S_ISSOCK(st.st_mode) || refuse(why, "not a socket");
}

bool place_is_live(const char *path, int *error)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	int fd;

	*error = ENAMETOOLONG;
	if (n >= sizeof(to.sun_path))
		return false;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return true;
	memcpy(to.sun_path, path, n);
	*error = connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 ? 0 : errno;
	close(fd);
	return *error != ECONNREFUSED && *error != ENOENT && *error != EACCES &&
	       *error != ENOTDIR && *error != EPROTOTYPE;
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
	static const char *const from[] = {[PLACE_OPTION] = "",
		[PLACE_ENVIRONMENT] = ", from $TOKEND_SOCKET",
		[PLACE_CONFIG] = ", from the config",
		[PLACE_OWN] = "",
		[PLACE_PRIVATE] = ", private",
		[PLACE_DEFAULT] = ""};
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
			i ? ", " : "", p->path, from[p->from], why);
	}
}

int tokend_default_socket(char *path, size_t capacity)
{
	struct places places;

	places_read(&places, NULL, NULL);

	const char *found = places_choose(&places);

	if (strlen(found) >= capacity)
		return TOKEND_EMEMORY;
	memcpy(path, found, strlen(found) + 1);
	return 0;
}
