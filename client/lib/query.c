#include "client/lib/query.h"

#include "client/lib/map.h"
#include "client/lib/message.h"
#include "client/lib/revive.h"
#include "client/lib/wait.h"
#include "client/lib/warn.h"

#include <inttypes.h>
#include <poll.h>

/* The relation of a message to the query that waits for its reply. */
enum relation {
	REPLY,
	LATE, /* the reply to an earlier query, which was interrupted */
	NEWS, /* not a reply: an error or a warning */
};

/*
 * For daemons whose replies carry no serials. They answer each query once, but may answer a
 * checkpoint after a later query: so a query is sent only after all late replies have arrived.
 */
static enum relation relate_by_kind(struct tokend *t, enum wire_op reply)
{
	const struct wire *w = &t->packet->wire;
	bool unsaved = w->op == WIRE_ERROR && wire_code(w) == FAULT_CHECKPOINT;

	if (t->late > 0 && (w->op == WIRE_SAVED || w->op == WIRE_REQUEST ||
				   w->op == WIRE_DESCRIBED || unsaved)) {
		t->late--;
		return LATE;
	}
	return w->op == reply ? REPLY : NEWS;
}

/* The relation of the message in t->packet to query @serial (0: no query waits), whose reply is of
 * kind @reply. */
static enum relation relate(struct tokend *t, uint64_t serial, enum wire_op reply)
{
	uint64_t got = wire_number(&t->packet->wire, WIRE_SERIAL);

	if (!t->mapping->serials)
		return relate_by_kind(t, serial ? reply : WIRE_OPS);
	if (got == 0)
		return NEWS;
	if (got == t->saving)
		t->saving = 0;
	return got == serial ? REPLY : LATE;
}

/* True if an earlier query must be answered before one with a reply of kind @reply is sent. */
static bool is_owed(const struct tokend *t, enum wire_op reply)
{
	return t->late > 0 || (t->saving && reply == WIRE_SAVED);
}

/* Notes that the reply, of kind @reply, to the last query is still to come. */
static void leave(struct tokend *t, enum wire_op reply)
{
	if (!t->mapping->serials)
		t->late++;
	else if (reply == WIRE_SAVED)
		t->saving = t->serial;
}

int query_listen(struct tokend *t)
{
	for (;;) {
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
			return 0;
		case LINK_WAKE:
			break;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, message_invalid(t));
		case LINK_MESSAGE:
			if (!message_warning(t) && relate(t, 0, WIRE_OPS) == NEWS &&
				t->packet->wire.op == WIRE_ERROR)
				return handle_latch(t, message_refused(t));
			break;
		}
	}
}

/* Waits for the daemon, which has been silent since @w began, until deadline_ms. Returns 0 or an
 * error. */
static int wait_for_daemon(struct tokend *t, short events, struct warnings *w)
{
	int64_t now = wait_now(), end = w->since + t->deadline_ms * WAIT_MS, left = end - now;
	int r = 0;

	if (left <= 0)
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"the daemon at %s accepts connections, but has not answered for %g s; is "
			"it stopped, or does its machine hang?",
			t->socket, t->deadline_ms / 1e3);
	if (warn_due(w))
		r = warn_say(t, w,
			"socket: the daemon at %s has not answered for %" PRId64
			" s; waiting for another %" PRId64 " s",
			t->socket, warn_waited(w), left / (1000 * WAIT_MS));
	if (r == 0)
		r = wait_ready(t, t->fd, events,
			wait_earlier(wait_earlier(end, warn_at(w)), now + WAIT_SLICE_MS * WAIT_MS));
	return r < 0 ? r : 0;
}

/* Sends a query. 1: sent, 0: the daemon is lost, or an error. */
static int send_query(struct tokend *t, const struct wire *wire, struct warnings *w)
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

/* Handles the message in t->packet: the reply to the query, or an error without a serial. Returns 1
 * or an error. */
static int take_reply(struct tokend *t, enum wire_op reply)
{
	enum wire_op op = t->packet->wire.op;

	if (op == reply)
		return 1;
	if (op != WIRE_ERROR)
		return handle_latch(t, message_unknown(t, wire_op_name(op)));

	int r = message_refused(t);

	return r == TOKEND_EDATA ? handle_latch(t, r) : r;
}

/*
 * Waits for the reply to query @serial (0: until a query with a reply of kind @reply may be sent).
 * Returns 1 with the reply in t->packet, 0 if the daemon is lost, or an error.
 */
static int await(struct tokend *t, uint64_t serial, enum wire_op reply, struct warnings *w)
{
	while (serial || is_owed(t, reply)) {
		int r = wait_for_daemon(t, POLLIN, w);

		if (r < 0)
			return r;
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
		case LINK_WAKE:
			continue;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, message_invalid(t));
		case LINK_MESSAGE:
			break;
		}
		if (message_warning(t))
			continue;

		enum relation relation = relate(t, serial, reply);

		if (relation == REPLY || (relation == NEWS && t->packet->wire.op == WIRE_ERROR))
			return take_reply(t, reply);
	}
	return 1;
}

int query(struct tokend *t, const struct wire *query, enum wire_op reply)
{
	struct wire numbered = *query;
	struct warnings w;

	for (;;) {
		int r = t->fd < 0 ? revive(t, true) : 1;

		warn_begin(&w, wait_now());
		if (r == 1)
			r = await(t, 0, reply, &w);
		if (r == 1) {
			wire_set(&numbered, WIRE_SERIAL, ++t->serial);
			r = send_query(t, &numbered, &w);
		}
		if (r == 1) {
			r = await(t, t->serial, reply, &w);
			if (r == TOKEND_EAGAIN || r == TOKEND_ECONNECT)
				leave(t, reply);
		}
		if (r == 1 && warn_over(t, &w) < 0)
			r = TOKEND_EAGAIN;
		if (r != 0)
			return r == 1 ? 0 : r;
	}
}
