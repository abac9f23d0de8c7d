/*
 * A small HTTP server, for a browser on the same node and for Prometheus. A connection has one
 * request, GET or HEAD, and its answer ends it. Clients, their requests and times are bounded: if
 * all places are taken, a new client takes that of the oldest.
 */
#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/web/web.h"

#include <arpa/inet.h>
#include <errno.h>
#include <llhttp.h>
#include <netdb.h>
#include <poll.h>
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
	REQUEST_MOST = 16384,
	WORD_BYTES = 256, /* a longer path or host is cut, and not served */
};

struct word {
	size_t n;
	char at[WORD_BYTES];
};

struct client {
	int fd; /* -1: the place is free */
	uint64_t number, until_ms;
	enum { READING, WRITING, ENDING } state;
	llhttp_t parser;
	size_t received;
	struct word path, header, host;
	bool after_value, complete;
	char *answer;
	size_t n, sent;
};

static void leave(struct client *c)
{
	close(c->fd);
	free(c->answer);
	*c = (struct client){.fd = -1};
}

/* ---- requests ---- */

static void add(struct word *word, const char *at, size_t n)
{
	size_t room = WORD_BYTES - 1 - word->n;

	n = n < room ? n : room;
	memcpy(word->at + word->n, at, n);
	word->n += n;
}

static int on_url(llhttp_t *parser, const char *at, size_t n)
{
	add(&((struct client *)parser->data)->path, at, n);
	return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t n)
{
	struct client *c = parser->data;

	if (c->after_value)
		c->header = (struct word){0};
	c->after_value = false;
	add(&c->header, at, n);
	return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t n)
{
	struct client *c = parser->data;

	c->after_value = true;
	if (strcasecmp(c->header.at, "host") == 0)
		add(&c->host, at, n);
	return 0;
}

/* A body is not read. */
static int on_headers_complete(llhttp_t *parser)
{
	((struct client *)parser->data)->complete = true;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_url = on_url,
	.on_header_field = on_header_field,
	.on_header_value = on_header_value,
	.on_headers_complete = on_headers_complete,
};

/*
 * A page of another site can have its name bound to this address, and a browser would then let its
 * script read the answers. Such a request has that name in Host:.
 */
static bool is_served(const struct http *http, const char *host)
{
	char name[WORD_BYTES], ours[WORD_BYTES] = "";
	unsigned char number[sizeof(struct in6_addr)];
	size_t n = strcspn(host, host[0] == '[' ? "]" : ":");

	n += host[n] == ']';
	snprintf(name, sizeof(name), "%.*s", (int)n, host);
	gethostname(ours, sizeof(ours) - 1);
	if (host[n] && host[n] != ':')
		return false;
	if (name[0] == '[') {
		name[n - 1] = 0;
		return inet_pton(AF_INET6, name + 1, number) == 1;
	}
	for (unsigned i = 0; i < http->hosts; i++)
		if (strcasecmp(name, http->host[i]) == 0)
			return true;
	return inet_pton(AF_INET, name, number) == 1 || strcasecmp(name, "localhost") == 0 ||
	       (ours[0] && strcasecmp(name, ours) == 0);
}

static unsigned answer_to(const struct http *http, struct client *c, FILE *to, const char **type)
{
	bool reads = c->parser.method == HTTP_GET || c->parser.method == HTTP_HEAD;
	const char *error = llhttp_get_error_reason(&c->parser);

	if (!c->complete && c->received > REQUEST_MOST)
		return fputs("the request is too long\n", to), 431;
	if (!c->complete)
		return fprintf(to, "%s\n", error ? error : "no HTTP request"), 400;
	if (c->host.n > 0 && !is_served(http, c->host.at))
		return fputs("this name is not served: use the address, or add --host NAME\n", to),
		       421;
	if (!reads)
		return fputs("only GET and HEAD are allowed\n", to), 405;
	c->path.at[strcspn(c->path.at, "?")] = 0;
	return http->answer(http->context, c->path.at, to, type);
}

static const char *phrase(unsigned status)
{
	switch (status) {
	case 200:
		return "OK";
	case 400:
		return "Bad Request";
	case 404:
		return "Not Found";
	case 405:
		return "Method Not Allowed";
	case 421:
		return "Misdirected Request";
	case 431:
		return "Request Header Fields Too Large";
	default:
		return "Service Unavailable";
	}
}

static void put_head(FILE *to, unsigned status, const char *type, size_t bytes)
{
	char date[32];
	time_t now = time(NULL);
	struct tm utc;

	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));
	fprintf(to,
		"HTTP/1.1 %u %s\r\nDate: %s\r\nConnection: close\r\nContent-Type: %s\r\n"
		"Content-Length: %zu\r\n%sCache-Control: no-store\r\n"
		"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
		"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
		"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'\r\n\r\n",
		status, phrase(status), date, type, bytes,
		status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

static void answer(const struct http *http, struct client *c)
{
	const char *type = "text/plain; charset=utf-8";
	char *body = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&body, &bytes), *all = open_memstream(&c->answer, &c->n);
	unsigned status = to ? answer_to(http, c, to, &type) : 0;
	bool made = to && fclose(to) == 0 && all;

	if (made) {
		put_head(all, status, type, bytes);
		if (c->parser.method != HTTP_HEAD)
			fwrite(body, 1, bytes, all);
	}
	made = all && fclose(all) == 0 && made;
	free(body);
	if (!made) {
		leave(c);
		return;
	}
	c->state = WRITING;
	c->until_ms = ctl_clock_ms() + PATIENCE_MS;
}

/* ---- connections ---- */

static void receive(const struct http *http, struct client *c)
{
	char some[4096];
	ssize_t n = recv(c->fd, some, sizeof(some), 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		leave(c);
		return;
	}
	if (c->state == ENDING)
		return;
	c->received += (size_t)n;
	if (llhttp_execute(&c->parser, some, (size_t)n) != HPE_OK || c->received > REQUEST_MOST)
		answer(http, c);
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
	c->state = ENDING;
	c->until_ms = ctl_clock_ms() + LINGER_MS;
}

static void take_up(struct client of[CLIENTS], int listener, uint64_t number)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *c = of;

	if (fd < 0)
		return;
	for (struct client *other = of; other < of + CLIENTS && c->fd >= 0; other++)
		if (other->fd < 0 || other->number < c->number)
			c = other;
	if (c->fd >= 0)
		leave(c);
	*c = (struct client){.fd = fd, .number = number, .until_ms = ctl_clock_ms() + PATIENCE_MS};
	llhttp_init(&c->parser, HTTP_REQUEST, &settings);
	c->parser.data = c;
}

/* Milliseconds until the first client is late; -1: there is none. Late ones leave. */
static int patience(struct client of[CLIENTS], uint64_t now)
{
	uint64_t least = UINT64_MAX;

	for (struct client *c = of; c < of + CLIENTS; c++) {
		if (c->fd >= 0 && c->until_ms <= now)
			leave(c);
		if (c->fd >= 0 && c->until_ms < least)
			least = c->until_ms;
	}
	return least == UINT64_MAX ? -1 : (int)(least - now);
}

void http_serve(const struct http *http, int fd)
{
	struct client *of = calloc(CLIENTS, sizeof(*of));
	struct pollfd polled[CLIENTS + 1] = {{.fd = fd, .events = POLLIN}};

	for (unsigned i = 0; i < CLIENTS && of; i++)
		of[i].fd = -1;
	for (uint64_t number = 1; of; number++) {
		int ms = patience(of, ctl_clock_ms());

		for (unsigned i = 0; i < CLIENTS; i++)
			polled[i + 1] = (struct pollfd){.fd = of[i].fd,
				.events = of[i].state == WRITING ? POLLOUT : POLLIN};
		if (poll(polled, CLIENTS + 1, ms) < 0 && errno != EINTR)
			break;
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (!polled[i + 1].revents)
				continue;
			if (of[i].state == WRITING)
				deliver(&of[i]);
			else
				receive(http, &of[i]);
		}
		if (polled[0].revents)
			take_up(of, fd, number);
	}
	ctl_fail("cannot wait for clients: %s", strerror(errno));
	free(of);
}

int http_listen(const char *address)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
		.ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;
	bool brackets = n >= 2 && address[0] == '[' && address[n - 1] == ']';
	struct addrinfo *at = NULL;
	char host[64];
	int fd = -1;

	snprintf(host, sizeof(host), "%.*s", (int)(n - (brackets ? 2 : 0)), address + brackets);
	if (!colon || n >= sizeof(host) ||
		getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &at) != 0) {
		ctl_fail("--listen: %s is not HOST:PORT with a numeric host", address);
		return -1;
	}
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* A port of closed connections is free. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (at->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){1}, sizeof(int));
	if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		ctl_fail("cannot listen at %s: %s", address, strerror(errno));
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(at);
	return fd;
}
