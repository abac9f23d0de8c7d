/*
 * libmicrohttpd runs without a thread of its own: the loop polls its epoll descriptor, and a timer
 * serves its timeouts.
 */
#include "daemon/control/metrics.h"

#include "daemon/control/control.h"
#include "proto/version.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { CONNECTIONS = 16, TIMEOUT_S = 10 };

struct metrics {
	struct control *control;
	struct MHD_Daemon *http;
	uv_poll_t poll;
	uv_timer_t timer;
	unsigned handles;
	struct MHD_Connection *open[CONNECTIONS]; /* the oldest first */
	unsigned opened;
	bool closed; /* a connection was closed during this MHD_run() */
};

/* ---- the page ---- */

static void header(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void plain(FILE *to, const char *name, const char *type, const char *help, double value)
{
	header(to, name, type, help);
	fprintf(to, "%s %.15g\n", name, value);
}

/* A label's value: quotes and backslashes are escaped. Names contain no line ends. */
static void label(FILE *to, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', to);
		fputc(*text, to);
	}
}

static double session_value(const struct session *s, unsigned which, uint64_t now_ms)
{
	struct feed_counters c = feed_counters(s->feed);

	switch (which) {
	case 0:
		return (double)c.published;
	case 1:
		return (double)c.released;
	case 2:
		return (double)(c.published - c.released);
	case 3:
		return s->full_since_ms ? (double)(now_ms - s->full_since_ms) / 1000 : 0;
	default:
		return (double)c.lost_wakes;
	}
}

static void sessions(FILE *to, const struct control *control)
{
	static const char *const families[][3] = {
		{"tokend_session_published_batches_total", "counter",
			"Micro-batches written to the session's ring"},
		{"tokend_session_released_batches_total", "counter",
			"Micro-batches that the trainer has released"},
		{"tokend_session_ready_batches", "gauge",
			"Micro-batches in the ring and not released: 0 while the trainer waits"},
		{"tokend_session_full_seconds", "gauge",
			"How long the ring has been full without a release: the trainer is slow, "
			"or hangs"},
		{"tokend_session_lost_wakes_total", "counter",
			"Wake-ups that did not arrive; must be 0"},
	};
	uint64_t now = uv_now(control->loop);

	for (unsigned f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
		header(to, families[f][0], families[f][1], families[f][2]);
		for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
			const struct session *s = control->sessions.of[id];

			if (!session_is_live(s))
				continue;
			fprintf(to, "%s{stream=\"", families[f][0]);
			label(to, s->stream->config->name);
			fputs("\",run=\"", to);
			label(to, s->run);
			fprintf(to,
				"\",rank=\"%" PRIu64 "\",peer=\"%" PRIu64 "\",session=\"%" PRIu32
				"\"} %.15g\n",
				s->rank, s->peer, s->id, session_value(s, f, now));
		}
	}
}

static void storage(FILE *to, const struct control *control)
{
	const struct catalog *catalog = control->catalog;

	header(to, "tokend_stream_slow_seconds", "gauge",
		"How long the stream's storage has not answered; 0: it answers");
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		fputs("tokend_stream_slow_seconds{stream=\"", to);
		label(to, catalog->config->stream[i].name);
		fprintf(to, "\"} %u\n", control->hangs.of[i].ticks);
	}
}

static unsigned unpinned(const struct control *control)
{
	unsigned n = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		n += session_is_live(s) && feed_counters(s->feed).pinned == RING_UNPINNED;
	}
	return n;
}

static void page(FILE *to, const struct control *control)
{
	uint64_t now = uv_now(control->loop);
	uv_rusage_t usage = {0};

	uv_getrusage(&usage);
	header(to, "tokend_info", "gauge", "Version and I/O backend");
	fprintf(to, "tokend_info{version=\"%s\",io=\"%s\"} 1\n", TOKEND_VERSION,
		reader_name(control->reader));
	plain(to, "tokend_uptime_seconds", "gauge", "Time since the daemon was ready",
		(double)(now - control->started_ms) / 1000);
	plain(to, "tokend_cpu_seconds_total", "counter", "CPU time of the daemon",
		(double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
			((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6);
	plain(to, "tokend_sessions", "gauge", "Sessions attached", control->sessions.n);
	plain(to, "tokend_memory_bytes", "gauge", "Memory of rings and staging buffers",
		(double)control->sessions.memory_bytes);
	plain(to, "tokend_memory_limit_bytes", "gauge",
		"The limit set by memory:", (double)control->config->memory_bytes);
	plain(to, "tokend_lost_wakes_total", "counter", "Wake-ups lost by sessions that have ended",
		(double)control->sessions.lost_wakes);
	plain(to, "tokend_sessions_failed_total", "counter",
		"Sessions stopped by an unreadable shard", (double)control->sessions.failures);
	plain(to, "tokend_rereads_total", "counter",
		"Reads of compressed shards that were damaged, and intact when repeated",
		(double)atomic_load(&control->rereads->total));
	plain(to, "tokend_state_dir_jobs", "gauge",
		"Jobs for state_dir that wait or run: snapshots and mix log entries",
		keeper_jobs(control->keeper));
	plain(to, "tokend_state_dir_busy_seconds", "gauge",
		"How long the present state_dir job has been running; above 20, saves fail",
		(double)keeper_busy_ms(control->keeper) / 1000);
	plain(to, "tokend_unpinned_sessions", "gauge",
		"Sessions whose GPU driver refused to register the ring: their copies are slower",
		unpinned(control));
	storage(to, control);
	sessions(to, control);
}

static struct MHD_Response *make_page(const struct control *control)
{
	char *text = NULL;
	size_t n = 0;
	FILE *to = open_memstream(&text, &n);

	if (!to)
		return NULL;
	page(to, control);
	if (fclose(to) != 0) {
		free(text);
		return NULL;
	}
	struct MHD_Response *response =
		MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);

	if (!response)
		free(text);
	else
		MHD_add_response_header(
			response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
	return response;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url,
	const char *method, const char *version, const char *body, size_t *body_bytes, void **state)
{
	static char lost[] = "not found; metrics are at /metrics\n";
	struct metrics *m = context;
	bool found = strcmp(method, "GET") == 0 && strcmp(url, "/metrics") == 0;
	struct MHD_Response *response =
		found ? make_page(m->control)
		      : MHD_create_response_from_buffer(strlen(lost), lost, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result result = MHD_NO;

	(void)version, (void)body, (void)body_bytes, (void)state;
	if (response) {
		result = MHD_queue_response(
			connection, found ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND, response);
		MHD_destroy_response(response);
	}
	return result;
}

/* ---- connections ---- */

static void forget(struct metrics *m, const struct MHD_Connection *connection)
{
	unsigned i = 0;

	while (i < m->opened && m->open[i] != connection)
		i++;
	if (i == m->opened)
		return;
	memmove(&m->open[i], &m->open[i + 1], (m->opened - i - 1) * sizeof(m->open[0]));
	m->opened--;
}

/*
 * Closes the oldest connection before the limit is reached, at which no new one would be accepted.
 * It is idle: a scrape takes a millisecond.
 */
static void notice(void *context, struct MHD_Connection *connection, void **unused,
	enum MHD_ConnectionNotificationCode code)
{
	struct metrics *m = context;

	(void)unused;
	if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
		forget(m, connection);
		m->closed = true;
		return;
	}
	if (m->opened == CONNECTIONS - 1) {
		const union MHD_ConnectionInfo *info =
			MHD_get_connection_info(m->open[0], MHD_CONNECTION_INFO_CONNECTION_FD);

		if (info)
			shutdown(info->connect_fd, SHUT_RDWR);
		forget(m, m->open[0]);
	}
	m->open[m->opened++] = connection;
}

/* ---- on the loop ---- */

static void on_timer(uv_timer_t *timer);

static void run(struct metrics *m)
{
	MHD_UNSIGNED_LONG_LONG wait;

	m->closed = false;
	MHD_run(m->http);
	/* After a close at the limit, MHD listens again only in its next run. */
	if (m->closed)
		uv_timer_start(&m->timer, on_timer, 0, 0);
	else if (MHD_get_timeout(m->http, &wait) == MHD_YES)
		uv_timer_start(&m->timer, on_timer, wait, 0);
	else
		uv_timer_stop(&m->timer);
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

static struct MHD_Daemon *serve(struct metrics *m, unsigned flags, const struct MHD_OptionItem at)
{
	const struct MHD_OptionItem where[] = {at, {MHD_OPTION_END, 0, NULL}};

	return MHD_start_daemon(MHD_USE_EPOLL | flags, 0, NULL, NULL, answer, m, MHD_OPTION_ARRAY,
		where, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
		MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_NOTIFY_CONNECTION, notice, m,
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

static bool serve_at(struct metrics *m, const char *address, struct fault *fault)
{
	struct addrinfo *found = NULL;

	if (!resolve(address, &found, fault))
		return false;
	m->http = serve(m, found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0,
		(struct MHD_OptionItem){MHD_OPTION_SOCK_ADDR, 0, found->ai_addr});
	freeaddrinfo(found);
	if (m->http)
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

static bool serve_fd(struct metrics *m, int fd, struct fault *fault)
{
	if (!is_tcp_listener(fd))
		return fault_set(fault, FAULT_ARGUMENT, "metrics",
			"metrics: the socket from systemd is not a TCP socket; use ListenStream= "
			"with a port");
	m->http = serve(m, 0, (struct MHD_OptionItem){MHD_OPTION_LISTEN_SOCKET, fd, NULL});
	return m->http || fault_errno(fault, errno, "metrics",
				  "metrics: cannot serve at systemd's socket: %s", strerror(errno));
}

struct metrics *metrics_start(
	struct control *control, const char *address, int fd, struct fault *fault)
{
	struct metrics *m = calloc(1, sizeof(*m));

	if (!m) {
		fault_set(fault, FAULT_MEMORY, "metrics", "metrics: out of memory");
		return NULL;
	}
	m->control = control;
	if (fd >= 0 ? !serve_fd(m, fd, fault) : !serve_at(m, address, fault)) {
		free(m);
		return NULL;
	}
	uv_poll_init(control->loop, &m->poll,
		MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
	uv_timer_init(control->loop, &m->timer);
	m->poll.data = m->timer.data = m;
	m->handles = 2;
	uv_poll_start(&m->poll, UV_READABLE, on_poll);
	return m;
}

static void on_closed(uv_handle_t *handle)
{
	struct metrics *m = handle->data;

	if (--m->handles > 0)
		return;
	MHD_stop_daemon(m->http);
	free(m);
}

void metrics_stop(struct metrics *m)
{
	if (!m)
		return;
	uv_close((uv_handle_t *)&m->poll, on_closed);
	uv_close((uv_handle_t *)&m->timer, on_closed);
}
