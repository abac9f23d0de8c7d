#include "daemon/control/dispatch.h"

#include "daemon/control/attach.h"
#include "daemon/control/cached.h"
#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "daemon/control/request.h"
#include "daemon/control/state.h"
#include "daemon/control/status.h"
#include "proto/phrases.h"

#include <inttypes.h>

static void hello(struct connection *c, const struct wire *w)
{
	struct wire answer = {.op = WIRE_HELLO};
	struct fault fault;

	if (wire_number(w, WIRE_VERSION_KEY) != WIRE_VERSION) {
		fault_set(&fault, FAULT_PROTOCOL, "version",
			"this daemon speaks protocol version 1; " PHRASE_RELEASE);
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	if (!wire_text(w, WIRE_HOST, c->host, sizeof(c->host)) || !wire_label_ok(c->host))
		c->host[0] = 0;
	c->token = wire_has(w, WIRE_PROCESS) ? wire_number(w, WIRE_PROCESS) : 0;
	c->greeted = true;
	wire_set(&answer, WIRE_VERSION_KEY, WIRE_VERSION);
	connection_send(c, wire_number(w, WIRE_SERIAL), &answer);
}

/* The messages that clients may send. */
static const struct {
	void (*handle)(struct connection *c, const struct wire *w);
	enum fault_code unattached; /* error if not attached; FAULT_NONE: need not be */
} messages[WIRE_OPS] = {
	[WIRE_HELLO] = {hello, FAULT_NONE},
	[WIRE_ATTACH] = {session_attach, FAULT_NONE},
	[WIRE_CHECKPOINT] = {state_checkpoint, FAULT_CHECKPOINT},
	[WIRE_PENDING] = {request_pending, FAULT_REQUEST},
	[WIRE_DESCRIBE] = {request_describe, FAULT_REQUEST},
	[WIRE_ANSWER] = {request_answer, FAULT_REQUEST},
	[WIRE_REQUEST] = {request_new, FAULT_NONE},
	[WIRE_CANCEL] = {request_cancel, FAULT_NONE},
	[WIRE_STATUS] = {status_reply, FAULT_NONE},
	[WIRE_CACHE] = {cached_query, FAULT_NONE},
};

static bool may_handle(const struct connection *c, const struct wire *w, struct fault *fault)
{
	enum fault_code unattached = messages[w->op].unattached;

	if (!c->greeted && w->op != WIRE_HELLO)
		return fault_set(fault, FAULT_PROTOCOL, "op", "send hello first");
	if (c->uid == c->user->all->web_uid && w->op != WIRE_HELLO && w->op != WIRE_STATUS)
		return fault_set(fault, FAULT_PERMISSION, "op",
			"user tokend-web may only ask for the status");
	if (!messages[w->op].handle)
		return fault_set(fault, FAULT_PROTOCOL, "op", "clients may not send this message");
	if (unattached != FAULT_NONE && (!c->session || !c->session->fed))
		return fault_set(fault, unattached, "connection", "attach first");
	return true;
}

static void on_packet(struct connection *c, const struct wire *w)
{
	struct fault fault;

	if (may_handle(c, w, &fault))
		messages[w->op].handle(c, w);
	else
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
}

static void on_wake(struct connection *c)
{
	/* A flood of needless wake-ups does not reach the data thread. */
	if (c->session && c->session->fed && ring_wanted(&c->session->memory.ring))
		data_thread_kick(c->control->data_thread, c->session->id);
}

static void on_process_end(struct connection *c)
{
	if (c->session)
		c->session->process_ended = true;
}

static void on_closed(struct connection *c)
{
	request_abandon(c);
	state_forget(c);
	if (c->session && c->session->fed)
		request_leave(c->session);
	if (c->session)
		session_leave(c->session);
}

const struct connection_events dispatch_events = {
	.on_packet = on_packet,
	.on_wake = on_wake,
	.on_process_end = on_process_end,
	.on_closed = on_closed,
};
