/* Queries of a session, their replies, and messages of the daemon that are none. */
#include "client/lib/handle.h"

#include "proto/phrases.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* ---- messages ---- */

/*
 * If the daemon is out of memory or rejects a value, it refuses us. For the caller that is
 * EREFUSED, not its own EMEMORY or EARGUMENT.
 */
static enum fault_code code_of(const struct wire *w)
{
	enum fault_code code = wire_code(w);

	if (code == FAULT_IO)
		return FAULT_DATA;
	return error_of(code) == TOKEND_EARGUMENT || error_of(code) == TOKEND_EMEMORY ? FAULT_ATTACH
										      : code;
}

int message_refused(struct tokend *t)
{
	const struct wire *w = &t->packet.wire;
	struct wire_bytes field = wire_bytes(w, WIRE_FIELD), text = wire_bytes(w, WIRE_TEXT);
	char name[FAULT_FIELD_BYTES];
	struct fault fault;

	snprintf(name, sizeof(name), "%.*s", (int)field.n, field.at);
	fault_set(&fault, code_of(w), name, "%.*s", (int)text.n, text.at);
	fault.passing = wire_has(w, WIRE_PASSING) && wire_number(w, WIRE_PASSING) != 0;
	return handle_fault(t, &fault);
}

int message_unknown(struct tokend *t, const char *what)
{
	return handle_fail(t, TOKEND_EPROTOCOL, "socket",
		"the process at %s is not a compatible tokend (%s); " PHRASE_RELEASE, t->socket,
		what);
}

int message_invalid(struct tokend *t)
{
	const struct fault *fault = &t->packet.fault;
	char what[sizeof(fault->field) + sizeof(fault->text) + 2];

	snprintf(what, sizeof(what), "%s: %s", fault->field, fault->text);
	return message_unknown(t, what);
}

enum link_event message_next(struct tokend *t, int fd)
{
	for (;;) {
		enum link_event what = link_receive(fd, &t->packet);
		struct wire_bytes text;
		char line[LIMIT_TEXT_BYTES];

		if (what == LINK_WAKE)
			continue;
		if (what != LINK_MESSAGE || t->packet.wire.op != WIRE_WARNING)
			return what;
		text = wire_bytes(&t->packet.wire, WIRE_TEXT);
		snprintf(line, sizeof(line), "%.*s", (int)text.n, text.at);
		handle_tell(t, line);
	}
}

void message_warnings(struct tokend *t)
{
	while (t->fd >= 0 && message_next(t, t->fd) == LINK_MESSAGE)
		;
}

/* ---- queries ---- */

/* The next message. Returns 1 with it in t->packet; 0: there is none, or the daemon is lost; or an
 * error, which is latched. */
static int receive(struct tokend *t)
{
	switch (message_next(t, t->fd)) {
	case LINK_MESSAGE:
		if (wire_number(&t->packet.wire, WIRE_SERIAL) == t->saving)
			t->saving = 0;
		return 1;
	case LINK_CLOSED:
		handle_lose(t);
		return 0;
	case LINK_FAULT:
		return handle_latch(t, message_invalid(t));
	case LINK_NOTHING:
	case LINK_WAKE:
		break;
	}
	return 0;
}

/* An error that answers no query ends the stream. */
static bool is_end(const struct wire *w)
{
	return w->op == WIRE_ERROR && wire_number(w, WIRE_SERIAL) == 0;
}

int query_listen(struct tokend *t)
{
	int r;

	while ((r = receive(t)) == 1)
		if (is_end(&t->packet.wire))
			return handle_latch(t, message_refused(t));
	return r;
}

/* Waits for the daemon, which has been silent since @w began, until deadline_ms. Returns 0 or an
 * error. */
static int wait_for_daemon(struct tokend *t, short events, struct waiting *w)
{
	int64_t end = w->since + t->options.deadline_ms * WAIT_MS;
	int r;

	if (wait_now() >= end)
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"the daemon at %s accepts connections, but has not answered for %g s; is "
			"it stopped, or does its machine hang?",
			t->socket, t->options.deadline_ms / 1e3);
	r = waiting_say(t, w, end, "socket", "the daemon at %s, which does not answer", t->socket);
	if (r == 0)
		r = wait_ready(t, t->fd, events, wait_earlier(end, waiting_at(w)));
	return r < 0 ? r : 0;
}

/* Sends a query. 1: sent, 0: the daemon is lost, or an error. */
static int send_query(struct tokend *t, const struct wire *wire, struct waiting *w)
{
	struct fault fault;

	while (!link_send(t->fd, wire, t->out, &fault)) {
		if (fault.code == FAULT_ARGUMENT)
			return handle_fault(t, &fault);
		if (!fault.passing) {
			handle_lose(t);
			return 0;
		}

		int r = wait_for_daemon(t, POLLOUT, w);

		if (r < 0)
			return r;
	}
	return 1;
}

/* The message in t->packet is the reply to the query, or an error that answers none. Returns 1 or
 * an error. */
static int take_reply(struct tokend *t, enum wire_op reply)
{
	enum wire_op op = t->packet.wire.op;

	if (op == reply)
		return 1;
	if (op != WIRE_ERROR)
		return handle_latch(t, message_unknown(t, wire_op_name(op)));

	int r = message_refused(t);

	return is_end(&t->packet.wire) ? handle_latch(t, r) : r;
}

/* Waits for the reply to query @serial, or the end of the stream. Returns 1 with it in t->packet, 0
 * if the daemon is lost, or an error. */
static int await(struct tokend *t, uint64_t serial, struct waiting *w)
{
	for (;;) {
		int r = wait_for_daemon(t, POLLIN, w);
		uint64_t of;

		if (r == 0)
			r = receive(t);
		if (r < 0 || t->fd < 0)
			return r;
		of = r == 1 ? wire_number(&t->packet.wire, WIRE_SERIAL) : 0;
		if (r == 1 && (of == serial || is_end(&t->packet.wire)))
			return 1;
	}
}

/* The daemon stores one checkpoint of a session at a time: waits for one that was interrupted. */
static int await_saved(struct tokend *t, struct waiting *w)
{
	if (!t->saving)
		return 1;

	int r = await(t, t->saving, w);

	return r == 1 && is_end(&t->packet.wire) ? handle_latch(t, message_refused(t)) : r;
}

int query(struct tokend *t, const struct wire *query, enum wire_op reply)
{
	struct wire numbered = *query;
	struct waiting w;

	for (;;) {
		int r = t->fd < 0 ? revive(t, true) : 1;

		waiting_begin(&w, wait_now());
		wire_set(&numbered, WIRE_SERIAL, ++t->serial);
		if (r == 1 && reply == WIRE_SAVED)
			r = await_saved(t, &w);
		if (r == 1)
			r = send_query(t, &numbered, &w);
		if (r == 1) {
			r = await(t, t->serial, &w);
			if ((r == TOKEND_EAGAIN || r == TOKEND_ECONNECT) && reply == WIRE_SAVED)
				t->saving = t->serial;
		}
		if (r == 1)
			r = take_reply(t, reply);
		if (r == 1 && waiting_over(t, &w) < 0)
			r = TOKEND_EAGAIN;
		if (r != 0)
			return r == 1 ? 0 : r;
	}
}

/* ---- of a trainer ---- */

int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes)
{
	struct wire checkpoint = {.op = WIRE_CHECKPOINT};
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (!tag || !wire_name_ok(tag))
		return handle_fail_name(t, "tag", tag ? tag : "");

	int64_t n = tokend_cursor(t, t->saved, LIMIT_CURSOR_BYTES);

	if (n < 0)
		return (int)n;
	wire_set_text(&checkpoint, WIRE_TAG, tag);
	wire_set_bytes(&checkpoint, WIRE_CURSOR, t->saved, (size_t)n);
	r = query(t, &checkpoint, WIRE_SAVED);
	if (r == 0 && path && path_bytes) {
		struct wire_bytes saved = wire_bytes(&t->packet.wire, WIRE_PATH);

		snprintf(path, path_bytes, "%.*s", (int)saved.n, saved.at);
	}
	return r;
}

int64_t tokend_stream(struct tokend *t, void *cursor, size_t capacity)
{
	const struct wire describe = {.op = WIRE_DESCRIBE};
	int r = handle_usable(t);

	if (r == 0)
		r = query(t, &describe, WIRE_DESCRIBED);
	if (r < 0)
		return r;

	struct wire_bytes bytes = wire_bytes(&t->packet.wire, WIRE_CURSOR);

	if (bytes.n > capacity)
		return handle_fail(t, TOKEND_EMEMORY, "capacity",
			"%zu bytes are too few for the cursor; %d are always enough", capacity,
			TOKEND_CURSOR_BYTES);
	memcpy(cursor, bytes.at, bytes.n);
	return bytes.n;
}
