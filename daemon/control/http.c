/*
 * libmicrohttpd runs without a thread of its own: the loop polls its epoll descriptor, and a timer
 * serves its timeouts.
 */
#include "daemon/control/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 16, TIMEOUT_S = 10, BODY_MOST = 16 << 20 };

struct http {
	const struct http_route *routes;
	void *context;
	struct MHD_Daemon *daemon;
	uv_poll_t poll;
	uv_timer_t timer;
	unsigned handles;
	struct MHD_Connection *open[CONNECTIONS]; /* the oldest first */
	unsigned opened;
	bool closed; /* a connection was closed during this MHD_run() */
};

/* ---- answers ---- */

static const struct http_route *find(const struct http *h, const char *path)
{
	for (const struct http_route *r = h->routes; r->path; r++)
		if (strcmp(path, r->path) == 0)
			return r;
	return NULL;
}

static unsigned not_found(const struct http *h, FILE *to)
{
	fputs("not found; served here:", to);
	for (const struct http_route *r = h->routes; r->path; r++)
		fprintf(to, " %s", r->path);
	fputc('\n', to);
	return MHD_HTTP_NOT_FOUND;
}

static unsigned not_allowed(FILE *to)
{
	fputs("only GET and HEAD are allowed\n", to);
	return MHD_HTTP_METHOD_NOT_ALLOWED;
}

static enum MHD_Result send_body(struct MHD_Connection *connection, unsigned status,
	const char *type, char *body, size_t bytes)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(bytes, body, MHD_RESPMEM_MUST_FREE);
	enum MHD_Result result;

	if (!response) {
		free(body);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", type);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, "Allow", "GET, HEAD");
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

/* A failure, MHD_NO, closes the connection. MHD itself leaves out the body for HEAD. */
static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *path,
	const char *method, const char *version, const char *upload, size_t *upload_bytes,
	void **state)
{
	const struct http *h = context;
	const struct http_route *route = find(h, path);
	bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
	char *body = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&body, &bytes);
	unsigned status;

	(void)version, (void)upload, (void)upload_bytes, (void)state;
	if (!to)
		return MHD_NO;
	status = !route	 ? not_found(h, to)
		 : reads ? route->answer(h->context, to)
			 : not_allowed(to);
	if (fclose(to) != 0 || bytes > BODY_MOST) {
		free(body);
		return MHD_NO;
	}
	return send_body(connection, status,
		route && reads ? route->type : "text/plain; charset=utf-8", body, bytes);
}

/* ---- connections ---- */

static void forget(struct http *h, const struct MHD_Connection *connection)
{
	unsigned i = 0;

	while (i < h->opened && h->open[i] != connection)
		i++;
	if (i == h->opened)
		return;
	memmove(&h->open[i], &h->open[i + 1], (h->opened - i - 1) * sizeof(h->open[0]));
	h->opened--;
}

/*
 * Closes the oldest connection before the limit is reached, at which no new one would be accepted.
 * It is idle: an answer takes a millisecond.
 */
static void notice(void *context, struct MHD_Connection *connection, void **unused,
	enum MHD_ConnectionNotificationCode code)
{
	struct http *h = context;

	(void)unused;
	if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
		forget(h, connection);
		h->closed = true;
		return;
	}
	if (h->opened == CONNECTIONS - 1) {
		const union MHD_ConnectionInfo *info =
			MHD_get_connection_info(h->open[0], MHD_CONNECTION_INFO_CONNECTION_FD);

		if (info)
			shutdown(info->connect_fd, SHUT_RDWR);
		forget(h, h->open[0]);
	}
	h->open[h->opened++] = connection;
}

/* ---- on the loop ---- */

static void on_timer(uv_timer_t *timer);

static void run(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG wait;

	h->closed = false;
	MHD_run(h->daemon);
	/* After a close at the limit, MHD listens again only in its next run. */
	if (h->closed)
		uv_timer_start(&h->timer, on_timer, 0, 0);
	else if (MHD_get_timeout(h->daemon, &wait) == MHD_YES)
		uv_timer_start(&h->timer, on_timer, wait, 0);
	else
		uv_timer_stop(&h->timer);
}

static void on_timer(uv_timer_t *timer)
{
	run(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	(void)status, (void)events;
	run(poll->data);
}

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
	       protocol == IPPROTO_TCP && listens && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 &&
	       fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

static struct MHD_Daemon *serve(struct http *h, unsigned flags, const struct MHD_OptionItem at)
{
	const struct MHD_OptionItem where[] = {at, {MHD_OPTION_END, 0, NULL}};

	return MHD_start_daemon(MHD_USE_EPOLL | flags, 0, NULL, NULL, answer, h, MHD_OPTION_ARRAY,
		where, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
		MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_NOTIFY_CONNECTION, notice, h,
		MHD_OPTION_END);
}

/* A sandbox forbids all of the network. Without IPv6 in the kernel, only an IPv6 address fails. */
static bool is_without_network(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0)
		close(fd);
	return fd < 0 && errno == EAFNOSUPPORT;
}

static bool serve_at(struct http *h, const char *address, struct fault *fault)
{
	struct addrinfo *found = NULL;

	if (!resolve(address, &found, fault))
		return false;
	h->daemon = serve(h, found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0,
		(struct MHD_OptionItem){MHD_OPTION_SOCK_ADDR, 0, found->ai_addr});
	freeaddrinfo(found);
	if (h->daemon)
		return true;

	int error = errno;

	if (error == EAFNOSUPPORT && is_without_network())
		return fault_set(fault, FAULT_PERMISSION, "metrics",
			"metrics: cannot listen at %s: the service may not use the network; run "
			"systemctl enable tokend-metrics.socket, and restart tokend",
			address);
	return fault_errno(fault, error, "metrics", "metrics: cannot listen at %s: %s", address,
		strerror(error));
}

static bool serve_fd(struct http *h, int fd, struct fault *fault)
{
	if (!is_tcp_listener(fd))
		return fault_set(fault, FAULT_ARGUMENT, "metrics",
			"metrics: the socket from systemd is not a TCP socket; use ListenStream= "
			"with a port");
	h->daemon = serve(h, 0, (struct MHD_OptionItem){MHD_OPTION_LISTEN_SOCKET, fd, NULL});
	return h->daemon ||
	       fault_errno(fault, errno, "metrics", "metrics: cannot serve at systemd's socket: %s",
		       strerror(errno));
}

struct http *http_start(uv_loop_t *loop, const char *address, int fd,
	const struct http_route *routes, void *context, struct fault *fault)
{
	struct http *h = calloc(1, sizeof(*h));

	if (!h) {
		fault_set(fault, FAULT_MEMORY, "metrics", "metrics: out of memory");
		return NULL;
	}
	h->routes = routes;
	h->context = context;
	if (fd >= 0 ? !serve_fd(h, fd, fault) : !serve_at(h, address, fault)) {
		free(h);
		return NULL;
	}
	uv_poll_init(
		loop, &h->poll, MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
	uv_timer_init(loop, &h->timer);
	h->poll.data = h->timer.data = h;
	h->handles = 2;
	uv_poll_start(&h->poll, UV_READABLE, on_poll);
	return h;
}

static void on_closed(uv_handle_t *handle)
{
	struct http *h = handle->data;

	if (--h->handles > 0)
		return;
	MHD_stop_daemon(h->daemon);
	free(h);
}

void http_stop(struct http *h)
{
	if (!h)
		return;
	uv_close((uv_handle_t *)&h->poll, on_closed);
	uv_close((uv_handle_t *)&h->timer, on_closed);
}
