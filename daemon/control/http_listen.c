#include "daemon/control/http_listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64 };

static bool resolve(const char *address, struct addrinfo **found, struct fault *fault)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
		.ai_socktype = SOCK_STREAM};
	char host[64];
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;

	if (!colon || n >= sizeof(host)) {
		return fault_set(fault, FAULT_ARGUMENT, "metrics",
			"metrics: %s is not HOST:PORT with a numeric host", address);
	}
	if (n >= 2 && address[0] == '[' && address[n - 1] == ']')
		snprintf(host, sizeof(host), "%.*s", (int)(n - 2), address + 1);
	else
		snprintf(host, sizeof(host), "%.*s", (int)n, address);
	int error = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, found);

	if (error)
		fault_set(fault, FAULT_ARGUMENT, "metrics",
			"metrics: %s is not HOST:PORT with a numeric host: %s", address,
			gai_strerror(error));
	return error == 0;
}

/* A socket of another kind would fail at each scrape only. */
static bool is_tcp_listener(int fd)
{
	int protocol = 0, listens = 0;
	socklen_t n = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) == 0 &&
	       protocol == IPPROTO_TCP && listens && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

/* A sandbox forbids all of the network. Without IPv6 in the kernel, only an IPv6 address fails. */
static bool is_without_network(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0)
		close(fd);
	return fd < 0 && errno == EAFNOSUPPORT;
}

/* Returns a descriptor, or -1 with errno. */
static int listen_at(const struct addrinfo *at)
{
	const int yes = 1;
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	/* A port of the last daemon's closed connections is free. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (at->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;

	int error = errno;

	close(fd);
	errno = error;
	return -1;
}

static int serve_at(const char *address, struct fault *fault)
{
	struct addrinfo *found = NULL;

	if (!resolve(address, &found, fault))
		return -1;

	int fd = listen_at(found), error = errno;

	freeaddrinfo(found);
	if (fd >= 0)
		return fd;
	if (error == EAFNOSUPPORT && is_without_network())
		fault_set(fault, FAULT_PERMISSION, "metrics",
			"metrics: cannot listen at %s: the service may not use the network; run "
			"systemctl enable tokend-metrics.socket, and restart tokend",
			address);
	else
		fault_errno(fault, error, "metrics", "metrics: cannot listen at %s: %s", address,
			strerror(error));
	return -1;
}

int http_listen(const char *address, int fd, struct fault *fault)
{
	if (fd < 0)
		return serve_at(address, fault);
	if (is_tcp_listener(fd))
		return fd;
	fault_set(fault, FAULT_ARGUMENT, "metrics",
		"metrics: the socket from systemd is not a TCP socket; use ListenStream= "
		"with a port");
	return -1;
}
