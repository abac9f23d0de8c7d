#include "daemon/control/host.h"

#include "proto/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTEN_FDS_START = 3 };

#define START_USEC (UINT64_C(3600) * 1000000) /* a start may take so long */

void notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd;

	if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(to.sun_path))
		return;
	memcpy(to.sun_path, path, strlen(path));
	if (path[0] == '@')
		to.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	/* systemd has timeouts for a service that it does not hear from. */
	(void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
	close(fd);
}

int notify_failed_start(const char *why)
{
	char status[LIMIT_TEXT_BYTES];

	log_line(LOG_ERROR, "%s", why);
	snprintf(status, sizeof(status), "STATUS=cannot start: %s", why);
	notify(status);
	return 1;
}

/* The number in variable @value_name, or 0 if @pid_name names another process. */
static uint64_t variable_for_us(const char *value_name, const char *pid_name)
{
	const char *value = getenv(value_name), *pid = getenv(pid_name);

	if (!value || (pid && strtol(pid, NULL, 10) != getpid()))
		return 0;
	return strtoull(value, NULL, 10);
}

uint64_t notify_watchdog_ms(void)
{
	return variable_for_us("WATCHDOG_USEC", "WATCHDOG_PID") / 1000 / 3;
}

void notify_starting(bool is)
{
	uint64_t usec = variable_for_us("WATCHDOG_USEC", "WATCHDOG_PID");
	char text[64];

	snprintf(text, sizeof(text), "WATCHDOG_USEC=%" PRIu64, is ? START_USEC : usec);
	if (usec > 0)
		notify(text);
}

int notify_listen_fd(void)
{
	uint64_t n = getenv("LISTEN_PID") ? variable_for_us("LISTEN_FDS", "LISTEN_PID") : 0;

	return n > 0 ? LISTEN_FDS_START : -1;
}
