/*
 * tokctl serve: the status of a daemon over HTTP, for Prometheus and for people. The daemon is
 * asked at most twice a second, however many clients there are.
 *
 * It is a small server, for a browser on the same node and for Prometheus. A connection has one
 * request, GET or HEAD, and its answer ends it. Clients, their requests and times are bounded: if
 * all places are taken, a new client takes that of the one whose time ends first.
 */
#include "client/ctl/online/talk.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <llhttp.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	CLIENTS = 32,
	BACKLOG = 64,
	PATIENCE_MS = 10000, /* for a whole request, and for taking the answer */
	LINGER_MS = 1000,    /* for the client's end, so that no reset overtakes the answer */
	LOOK_MS = 1000,	     /* at these times */
	REQUEST_MOST = 16384,
	FRESH_MS = 500,
	SILENT_MS = 5000,     /* of the data thread */
	STATE_DIR_MS = 20000, /* then saves fail */
	SESSIONS_LISTED = 256,
};

static const char away[] = "the daemon does not answer\n";

struct served {
	const struct ctl_arguments *a;
	struct ctl_link link;
	json_t *status; /* NULL: the daemon does not answer */
	uint64_t fresh_until_ms;
};

/* ---- documents ---- */

static void refresh(struct served *s)
{
	bool was_there = s->status || s->fresh_until_ms == 0;

	if (ctl_clock_ms() < s->fresh_until_ms)
		return;
	json_decref(s->status);
	s->status = ctl_status_of(&s->link, s->a, true);
	if (was_there && !s->status) /* the reason names directories, so it is not served */
		ctl_fail("%s", s->link.why);
	else if (!was_there && s->status)
		ctl_note("the daemon answers again");
	s->fresh_until_ms = ctl_clock_ms() + FRESH_MS;
}

/* The page's files are part of the program: it serves without a directory of its own. */
#define EMBED(name, path)                                                                          \
	__asm__(".section .rodata\n" #name ":\n.incbin \"" path "\"\n" #name                       \
		"_end:\n.byte 0\n.previous\n");                                                    \
	extern const char name[] __attribute__((visibility("hidden"))),                            \
		name##_end[] __attribute__((visibility("hidden")))

EMBED(page_html, "client/ctl/web/page.html");
EMBED(page_css, "client/ctl/web/page.css");
EMBED(page_js, "client/ctl/web/page.js");

/* Prometheus gets the answer that the daemon is away: no answer means that tokctl serve is. */
static bool put_metrics(struct served *s, FILE *to)
{
	metrics_write(to, s->status, ctl_given(s->a, "sessions"));
	return true;
}

static bool put_status(struct served *s, FILE *to)
{
	json_t *sessions = json_object_get(s->status, "sessions");

	if (!s->status)
		fputs(away, to);
	while (json_array_size(sessions) > SESSIONS_LISTED && !ctl_given(s->a, "sessions"))
		json_array_remove(sessions, json_array_size(sessions) - 1);
	return s->status &&
	       json_dumpf(s->status, to,
		       JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) == 0;
}

static bool put_health(struct served *s, FILE *to)
{
	uint64_t silent_ms = status_number(json_object_get(s->status, "daemon"), "silent_ms");
	bool healthy = s->status && silent_ms < SILENT_MS;

	if (healthy)
		fputs("ok\n", to);
	else if (s->status)
		fprintf(to, "the data thread has not answered for %" PRIu64 " s\n",
			silent_ms / 1000);
	else
		fputs(away, to);
	return healthy;
}

/* Ready: a trainer that attaches to any stream would get data. */
static bool put_readiness(struct served *s, FILE *to)
{
	uint64_t busy_ms = status_number(json_object_get(s->status, "state_dir"), "busy_ms");
	json_t *stream;
	bool ready = busy_ms < STATE_DIR_MS;
	size_t i;

	if (!ready)
		fprintf(to, "state_dir has not answered for %" PRIu64 " s\n", busy_ms / 1000);
	json_array_foreach(json_object_get(s->status, "streams"), i, stream)
	{
		if (status_number(stream, "slow_ms") == 0)
			continue;
		ready = false;
		fprintf(to, "storage of stream %s has not answered for %" PRIu64 " s\n",
			status_text(stream, "stream"), status_number(stream, "slow_ms") / 1000);
	}
	return ready && put_health(s, to);
}

static const char plain[] = "text/plain; charset=utf-8";
static const struct {
	const char *path, *type;
	bool (*put)(struct served *s, FILE *to); /* false: status 503; NULL: a file */
	const char *file, *end;
} routes[] = {
	{"/", "text/html; charset=utf-8", NULL, page_html, page_html_end},
	{"/page.css", "text/css; charset=utf-8", NULL, page_css, page_css_end},
	{"/page.js", "text/javascript; charset=utf-8", NULL, page_js, page_js_end},
	{"/status.json", "application/json", put_status, NULL, NULL},
	{"/metrics", "text/plain; version=0.0.4; charset=utf-8", put_metrics, NULL, NULL},
	{"/healthz", plain, put_health, NULL, NULL},
	{"/readyz", plain, put_readiness, NULL, NULL},
};

/* Writes the answer to a request that is not served, and returns its status. */
static unsigned refuse(FILE *to, unsigned status, const char *why)
{
	fprintf(to, "%s\n", why);
	return status;
}

/* Writes the document at @path to @to, sets its type, and returns its status. */
static unsigned put_document(struct served *s, const char *path, FILE *to, const char **type)
{
	const size_t n = sizeof(routes) / sizeof(routes[0]);
	bool done = true;
	size_t i = 0;

	while (i < n && strcmp(path, routes[i].path) != 0)
		i++;
	if (i == n)
		return refuse(to, 404, "not found; try / /status.json /metrics /healthz /readyz");
	if (routes[i].put) {
		refresh(s);
		done = routes[i].put(s, to);
	} else {
		fwrite(routes[i].file, 1, (size_t)(routes[i].end - routes[i].file), to);
	}
	if (done)
		*type = routes[i].type;
	return done ? 200 : 503;
}

/* ---- requests ---- */

struct client {
	int fd; /* -1: the place is free */
	uint64_t until_ms;
	char *answer;	/* NULL: the request is not complete */
	size_t n, sent; /* of the answer; when all is sent, the client's end is waited for */
	size_t received;
	char request[REQUEST_MOST + 1]; /* ends with a 0 */
};

/* What llhttp finds in a request. */
struct head {
	const struct served *served;
	bool is_host, foreign;
};

static void leave(struct client *c)
{
	close(c->fd);
	free(c->answer);
	c->answer = NULL;
	c->fd = -1;
	c->until_ms = 0;
}

/*
 * A page of another site can have its name bound to this address, and a browser would then let its
 * script read the answers. Such a request has that name in Host:.
 */
static bool is_served(const struct served *s, const char *host, size_t n)
{
	char text[256], name[256], ours[256] = "";
	unsigned char number[sizeof(struct in6_addr)];
	char after = ':';

	snprintf(text, sizeof(text), "%.*s", (int)(n < sizeof(text) ? n : 0), host);
	if (sscanf(text, "[%255[^]]]%c", name, &after) >= 1)
		return after == ':' && inet_pton(AF_INET6, name, number) == 1;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, ":"), text); /* without the port */
	for (unsigned i = 0; i < s->a->listed; i++)
		if (strcasecmp(name, s->a->list[i]) == 0)
			return true;
	gethostname(ours, sizeof(ours) - 1);
	return inet_pton(AF_INET, name, number) == 1 || strcasecmp(name, "localhost") == 0 ||
	       (ours[0] && strcasecmp(name, ours) == 0);
}

static int on_header_field(llhttp_t *parser, const char *at, size_t n)
{
	((struct head *)parser->data)->is_host = n == 4 && strncasecmp(at, "host", n) == 0;
	return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t n)
{
	struct head *h = parser->data;

	h->foreign |= h->is_host && n > 0 && !is_served(h->served, at, n);
	return 0;
}

/* A body is not read. */
static int on_headers_complete(llhttp_t *parser)
{
	(void)parser;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_header_field = on_header_field,
	.on_header_value = on_header_value,
	.on_headers_complete = on_headers_complete,
};

/* Writes the answer to @to, and returns its status. 0: the request is not complete yet. */
static unsigned answer_to(
	struct client *c, struct served *s, FILE *to, llhttp_t *parser, const char **type)
{
	struct head h = {.served = s};
	llhttp_errno_t end;
	char path[64] = "";

	/* All that has arrived is parsed again: then each text is whole. */
	llhttp_init(parser, HTTP_REQUEST, &settings);
	parser->data = &h;
	end = llhttp_execute(parser, c->request, c->received);
	if (end == HPE_OK && c->received < REQUEST_MOST)
		return 0;
	if (end == HPE_OK)
		return refuse(to, 431, "the request is too long");
	if (end != HPE_PAUSED)
		return refuse(to, 400, llhttp_get_error_reason(parser));
	if (h.foreign)
		return refuse(
			to, 421, "this name is not served: use the address, or add --host NAME");
	if (parser->method != HTTP_GET && parser->method != HTTP_HEAD)
		return refuse(to, 405, "only GET and HEAD are allowed");
	sscanf(c->request, "%*s %63[^ ?]", path);
	return put_document(s, path, to, type);
}

static void answer(struct client *c, struct served *s)
{
	const char *type = "text/plain; charset=utf-8";
	char *body = NULL, date[32];
	size_t bytes = 0;
	llhttp_t parser = {0};
	FILE *to = open_memstream(&body, &bytes);
	unsigned status = to ? answer_to(c, s, to, &parser, &type) : 0;
	bool made = to && fclose(to) == 0;
	time_t now = time(NULL);
	int n = 0;

	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime(&now));
	if (made && status > 0)
		n = asprintf(&c->answer,
			"HTTP/1.1 %u %s\r\nDate: %s\r\nConnection: close\r\nContent-Type: %s\r\n"
			"Content-Length: %zu\r\n%sCache-Control: no-store\r\n"
			"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
			"Content-Security-Policy: default-src 'none'; script-src 'self'; "
			"style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
			"form-action 'none'; frame-ancestors 'none'\r\n\r\n%s",
			status, status == 200 ? "OK" : "Error", date, type, bytes,
			status == 405 ? "Allow: GET, HEAD\r\n" : "",
			parser.method == HTTP_HEAD ? "" : body);
	free(body);
	if (made && status == 0)
		return;
	if (n <= 0) {
		c->answer = NULL; /* out of memory */
		leave(c);
		return;
	}
	c->n = (size_t)n;
	c->until_ms = ctl_clock_ms() + PATIENCE_MS;
}

/* ---- connections ---- */

static void receive(struct client *c, struct served *s)
{
	/* Bytes after the request are thrown away. */
	size_t at = c->answer ? 0 : c->received;
	ssize_t n = recv(c->fd, c->request + at, REQUEST_MOST - at, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		leave(c);
	} else if (!c->answer) {
		c->received += (size_t)n;
		c->request[c->received] = 0;
		answer(c, s);
	}
}

static void deliver(struct client *c)
{
	ssize_t n = send(c->fd, c->answer + c->sent, c->n - c->sent, MSG_NOSIGNAL);

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		leave(c);
	if (n <= 0)
		return;
	c->sent += (size_t)n;
	if (c->sent < c->n)
		return;
	shutdown(c->fd, SHUT_WR);
	c->until_ms = ctl_clock_ms() + LINGER_MS;
}

static void take_up(struct client of[CLIENTS], int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *c = of;

	if (fd < 0)
		return;
	for (struct client *other = of; other < of + CLIENTS; other++)
		if (other->until_ms < c->until_ms) /* free, or without much time */
			c = other;
	if (c->fd >= 0)
		leave(c);
	c->fd = fd;
	c->until_ms = ctl_clock_ms() + PATIENCE_MS;
	c->n = c->sent = c->received = 0;
}

/* Serves at @fd. Returns after an error only. */
static void serve_clients(struct served *s, int fd)
{
	static struct client of[CLIENTS];
	struct pollfd polled[CLIENTS + 1];

	for (unsigned i = 0; i < CLIENTS; i++)
		of[i].fd = -1;
	for (;;) {
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (of[i].fd >= 0 && of[i].until_ms <= ctl_clock_ms())
				leave(&of[i]);
			polled[i] = (struct pollfd){
				.fd = of[i].fd, .events = of[i].sent < of[i].n ? POLLOUT : POLLIN};
		}
		polled[CLIENTS] = (struct pollfd){.fd = fd, .events = POLLIN};
		if (poll(polled, CLIENTS + 1, LOOK_MS) < 0 && errno != EINTR)
			break;
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (polled[i].revents && polled[i].events == POLLOUT)
				deliver(&of[i]);
			else if (polled[i].revents)
				receive(&of[i], s);
		}
		if (polled[CLIENTS].revents)
			take_up(of, fd);
	}
	ctl_fail("cannot wait for clients: %s", strerror(errno));
}

/* A socket that listens at @address, "HOST:PORT" with a numeric host ([::1]:9464 for IPv6), and
 * says so; or -1 after an error. */
static int listen_at(const char *address)
{
	const struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	struct addrinfo *at = NULL;
	char host[64], port[8];
	int end = 0, fd = -1;

	if (sscanf(address, "[%63[^]]]:%7[0-9]%n", host, port, &end) < 2)
		sscanf(address, "%63[^:]:%7[0-9]%n", host, port, &end);
	if (end == 0 || address[end] || atoi(port) > UINT16_MAX ||
		getaddrinfo(host, port, &hints, &at) != 0) {
		ctl_fail("--listen: %s is not HOST:PORT: numeric host, port up to 65535", address);
		return -1;
	}
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* A port of closed connections is free. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (at->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){1}, sizeof(int));
	if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		ctl_fail("cannot listen at %s: %s", address, strerror(errno));
		fd = -1; /* not closed: the process ends */
	} else {
		getsockname(fd, at->ai_addr, &at->ai_addrlen);
		ctl_note("serving at http://%.*s:%u/", (int)(strrchr(address, ':') - address),
			address, ntohs(((struct sockaddr_in *)(void *)at->ai_addr)->sin_port));
	}
	freeaddrinfo(at);
	return fd;
}

/* ---- the command ---- */

static const struct ctl_option options[] = {
	{CTL_SOCKET_OPTION},
	{CTL_CONFIG_OPTION},
	{OPTION_TEXT(
		"listen", "ADDRESS", "HOST:PORT with a numeric host; default: 127.0.0.1:9464")},
	{OPTION_LIST("host", "NAME", "a name under which clients know this node")},
	{OPTION_FLAG("sessions", "metrics have series for each session, with its run and rank")},
};

static int serve(const struct ctl_arguments *a)
{
	const char *address = ctl_given(a, "listen") ? ctl_text(a, "listen") : "127.0.0.1:9464";
	struct served s = {.a = a, .link.quiet = true};
	int fd = listen_at(address);

	if (fd >= 0)
		serve_clients(&s, fd);
	return CTL_FAILED;
}

const struct ctl_command ctl_serve = {
	.name = "serve",
	.help = "serve metrics and a live page of a daemon over HTTP",
	OPTIONS_ARE(options),
	.run = serve,
};
