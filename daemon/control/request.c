/*
 * Requests: an operator's word to the sessions of a stream, which see its number in their rings and fetch the
 * rest. The daemon carries nothing out and remembers only the last one.
 */
#include "log.h"
#include "server.h"

#include <inttypes.h>

static struct request *request_of(struct server *server, const struct stream *stream)
{
	return &server->request[stream - server->options->catalog->stream];
}

static void send_request(struct connection *c, const struct request *r)
{
	struct wire w = {.op = WIRE_REQUEST};

	wire_set(&w, WIRE_NUMBER, r->number);
	wire_set_text(&w, WIRE_KIND, r->kind);
	wire_set_text(&w, WIRE_ARGS, r->args);
	connection_send(c, &w, NULL, 0);
}

void request_new(struct connection *c, const struct wire *w)
{
	struct server *server = c->server;
	char name[LIMIT_NAME_BYTES + 1];
	const struct stream *stream = wire_text(w, WIRE_STREAM, name, sizeof(name))
					      ? catalog_stream(server->options->catalog, name)
					      : NULL;
	struct request *r;

	if (!stream) {
		connection_error(c, "request", "stream", "no such stream");
		return;
	}
	r = request_of(server, stream);

	struct request next = {.number = server->requests + 1};

	if (!wire_text(w, WIRE_KIND, next.kind, sizeof(next.kind)) ||
		!wire_text(w, WIRE_ARGS, next.args, sizeof(next.args))) {
		connection_error(c, "request", "args", "too long");
		return;
	}
	*r = next;
	server->requests++;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct session *s = server->session[id];

		if (s && s->fed && s->stream == stream)
			atomic_store_explicit(
				&s->segment.ring.header->request, r->number, memory_order_release);
	}
	log_line(LOG_NOTE, "request %" PRIu64 " to stream %s: %s %s", r->number, name, r->kind, r->args);
	send_request(c, r);
}

void request_pending(struct connection *c)
{
	static const struct request none;

	if (!c->session || !c->session->fed)
		connection_refuse(c, "request", "connection", "attach first");
	else if (atomic_load(&c->session->segment.ring.header->request) == 0)
		send_request(c, &none); /* what was asked before this session came is not its business */
	else
		send_request(c, request_of(c->server, c->session->stream));
}

void request_acknowledge(struct connection *c, const struct wire *w)
{
	char text[LIMIT_TEXT_BYTES + 1];

	if (!c->session || !wire_text(w, WIRE_TEXT, text, sizeof(text)))
		return;
	c->session->acknowledged = wire_number(w, WIRE_NUMBER);
	log_line(LOG_NOTE, "request %" PRIu64 ": rank %" PRIu64 " of run %s: %s", c->session->acknowledged,
		c->session->rank, c->session->run, text);
}
