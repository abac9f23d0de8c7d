/*
 * llhttp parses; a connection's next request is read after the last one is answered. Connections
 * wait in the kernel while all slots are taken: libuv accepts none until the last one is taken up.
 */
#include "daemon/control/http.h"

#include "daemon/control/http_listen.h"

#include <llhttp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	CLIENTS = 16,
	TIMEOUT_MS = 10000, /* for the next whole request, and for taking an answer */
	REQUEST_MOST = 16384,
	PATH_BYTES = 256, /* a longer path is cut, and no route's */
	BODY_MOST = 16 << 20,
};

struct client {
	struct http *http;
	uv_tcp_t tcp;
	uv_timer_t timer;
	unsigned handles; /* open ones; 0: the slot is free */
	uint64_t number;  /* that of the oldest is the smallest */
	llhttp_t parser;
	size_t bytes; /* of this request, so far */
	char path[PATH_BYTES];
	size_t path_bytes;
	bool keep; /* the connection serves another request */
	char in[4096];
	const char *next, *end; /* the bytes that are not parsed yet */
	uv_write_t write;
	char head[768];
	char *body;
};

struct http {
	const struct http_route *routes;
	void *context;
	llhttp_settings_t settings;
	uv_tcp_t listener;
	unsigned handles; /* the listener, and clients */
	bool waits;	  /* a connection waits for a slot */
	bool stopped;
	uint64_t numbers;
	struct client of[CLIENTS];
};

static void take_up(struct http *h);
static void parse(struct client *c);

/* ---- ends ---- */

static void release(struct http *h)
{
	if (--h->handles == 0)
		free(h);
}

static void on_closed(uv_handle_t *handle)
{
	struct client *c = handle->data;
	struct http *h = c->http;

	if (--c->handles > 0)
		return;
	free(c->body);
	c->body = NULL;
	if (h->waits && !h->stopped)
		take_up(h);
	release(h);
}

static void close_client(struct client *c)
{
	if (uv_is_closing((uv_handle_t *)&c->tcp))
		return;
	uv_close((uv_handle_t *)&c->tcp, on_closed);
	uv_close((uv_handle_t *)&c->timer, on_closed);
}

static void on_timeout(uv_timer_t *timer)
{
	close_client(timer->data);
}

/* ---- answers ---- */

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
	case 431:
		return "Request Header Fields Too Large";
	case 503:
		return "Service Unavailable";
	default:
		return "";
	}
}

static void on_alloc(uv_handle_t *handle, size_t hint, uv_buf_t *buffer)
{
	struct client *c = handle->data;

	(void)hint;
	*buffer = uv_buf_init(c->in, sizeof(c->in));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
	struct client *c = stream->data;

	if (n < 0) {
		close_client(c);
		return;
	}
	c->next = buffer->base;
	c->end = buffer->base + n;
	parse(c);
}

static void on_written(uv_write_t *write, int status)
{
	struct client *c = write->data;

	free(c->body);
	c->body = NULL;
	if (status < 0 || !c->keep) {
		close_client(c);
		return;
	}
	uv_timer_start(&c->timer, on_timeout, TIMEOUT_MS, 0);
	parse(c);
}

/* Takes c->body over. Nothing is read until the answer is written. */
static void reply(struct client *c, unsigned status, const char *type, size_t bytes)
{
	char date[32];
	time_t now = time(NULL);
	struct tm utc;

	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));

	int n = snprintf(c->head, sizeof(c->head),
		"HTTP/1.1 %u %s\r\nDate: %s\r\nConnection: %s\r\nContent-Type: %s\r\n"
		"Content-Length: %zu\r\n%sCache-Control: no-store\r\n"
		"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
		"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
		"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'\r\n\r\n",
		status, phrase(status), date, c->keep ? "keep-alive" : "close", type, bytes,
		status == 405 ? "Allow: GET, HEAD\r\n" : "");
	uv_buf_t parts[] = {
		uv_buf_init(c->head, (unsigned)n), uv_buf_init(c->body, (unsigned)bytes)};

	uv_read_stop((uv_stream_t *)&c->tcp);
	uv_timer_start(&c->timer, on_timeout, TIMEOUT_MS, 0);
	c->write.data = c;
	if (uv_write(&c->write, (uv_stream_t *)&c->tcp, parts,
		    c->parser.method == HTTP_HEAD ? 1 : 2, on_written) < 0)
		close_client(c);
}

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
	return 404;
}

/* @status: that of a request without a route, or 0. @text says why. */
static void answer(struct client *c, unsigned status, const char *text)
{
	struct http *h = c->http;
	const struct http_route *route = status ? NULL : find(h, c->path);
	size_t bytes = 0;
	FILE *to = open_memstream(&c->body, &bytes);

	if (!to) {
		close_client(c);
		return;
	}
	if (route)
		status = route->answer(h->context, to);
	else if (status)
		fprintf(to, "%s\n", text);
	else
		status = not_found(h, to);
	if (fclose(to) != 0 || bytes > BODY_MOST) {
		close_client(c);
		return;
	}
	reply(c, status, route ? route->type : "text/plain; charset=utf-8", bytes);
}

static void refuse(struct client *c, unsigned status, const char *text)
{
	c->keep = false;
	answer(c, status, text);
}

/* ---- requests ---- */

static int on_message_begin(llhttp_t *parser)
{
	struct client *c = parser->data;

	c->path_bytes = 0;
	return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t n)
{
	struct client *c = parser->data;
	size_t room = PATH_BYTES - 1 - c->path_bytes;

	memcpy(c->path + c->path_bytes, at, n < room ? n : room);
	c->path_bytes += n < room ? n : room;
	return 0;
}

/* An offer of another protocol is declined by an answer in this one. */
static int on_headers_complete(llhttp_t *parser)
{
	parser->upgrade = 0;
	return 0;
}

static int on_message_complete(llhttp_t *parser)
{
	struct client *c = parser->data;

	c->keep = llhttp_should_keep_alive(parser);
	return HPE_PAUSED;
}

static void serve(struct client *c)
{
	bool reads = c->parser.method == HTTP_GET || c->parser.method == HTTP_HEAD;
	char *query = memchr(c->path, '?', c->path_bytes);

	c->path[query ? (size_t)(query - c->path) : c->path_bytes] = '\0';
	c->bytes = 0;
	llhttp_resume(&c->parser);
	if (reads || !find(c->http, c->path))
		answer(c, 0, NULL);
	else
		answer(c, 405, "only GET and HEAD are allowed");
}

static void parse(struct client *c)
{
	size_t n = (size_t)(c->end - c->next);
	llhttp_errno_t error = llhttp_execute(&c->parser, c->next, n);

	if (error == HPE_PAUSED) {
		c->next = llhttp_get_error_pos(&c->parser);
		serve(c);
		return;
	}
	c->bytes += n;
	if (error != HPE_OK)
		refuse(c, 400, llhttp_get_error_reason(&c->parser));
	else if (c->bytes > REQUEST_MOST)
		refuse(c, 431, "the request is too long");
	else
		uv_read_start(
			(uv_stream_t *)&c->tcp, on_alloc, on_read); /* does nothing if it reads */
}

/* ---- connections ---- */

/* Returns a free slot, or NULL after it began to close the oldest client, which is idle: an answer
 * takes a millisecond. */
static struct client *slot(struct http *h)
{
	struct client *oldest = NULL;

	for (struct client *c = h->of; c < h->of + CLIENTS; c++) {
		if (c->handles == 0)
			return c;
		if (uv_is_closing((uv_handle_t *)&c->tcp))
			return NULL;
		if (!oldest || c->number < oldest->number)
			oldest = c;
	}
	close_client(oldest);
	return NULL;
}

static void take_up(struct http *h)
{
	struct client *c = slot(h);

	h->waits = !c;
	if (!c)
		return;
	memset(c, 0, sizeof(*c));
	c->http = h;
	c->number = h->numbers++;
	c->tcp.data = c->timer.data = c;
	c->next = c->end = c->in;
	c->handles = 2;
	h->handles++;
	llhttp_init(&c->parser, HTTP_REQUEST, &h->settings);
	c->parser.data = c;
	uv_timer_init(h->listener.loop, &c->timer);
	uv_tcp_init(h->listener.loop, &c->tcp);
	if (uv_accept((uv_stream_t *)&h->listener, (uv_stream_t *)&c->tcp) < 0) {
		close_client(c);
		return;
	}
	uv_timer_start(&c->timer, on_timeout, TIMEOUT_MS, 0);
	parse(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
	struct http *h = listener->data;

	if (status == 0)
		take_up(h);
}

static void on_listener_closed(uv_handle_t *handle)
{
	release(handle->data);
}

struct http *http_start(uv_loop_t *loop, const char *address, int fd,
	const struct http_route *routes, void *context, struct fault *fault)
{
	struct http *h = calloc(1, sizeof(*h));
	int at = h ? http_listen(address, fd, fault) : -1;

	if (!h)
		fault_set(fault, FAULT_MEMORY, "metrics", "metrics: out of memory");
	if (at < 0) {
		free(h);
		return NULL;
	}
	h->routes = routes;
	h->context = context;
	llhttp_settings_init(&h->settings);
	h->settings.on_message_begin = on_message_begin;
	h->settings.on_url = on_url;
	h->settings.on_headers_complete = on_headers_complete;
	h->settings.on_message_complete = on_message_complete;
	uv_tcp_init(loop, &h->listener);
	h->listener.data = h;
	h->handles = 1;

	int error = uv_tcp_open(&h->listener, at);

	if (error == 0)
		error = uv_listen((uv_stream_t *)&h->listener, CLIENTS, on_connection);
	if (error == 0)
		return h;
	fault_errno(fault, -error, "metrics", "metrics: cannot serve at its socket: %s",
		uv_strerror(error));
	http_stop(h);
	return NULL;
}

void http_stop(struct http *h)
{
	if (!h)
		return;
	h->stopped = true;
	uv_close((uv_handle_t *)&h->listener, on_listener_closed);
	for (struct client *c = h->of; c < h->of + CLIENTS; c++)
		if (c->handles > 0)
			close_client(c);
}
