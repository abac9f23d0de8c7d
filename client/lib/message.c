#include "client/lib/message.h"

#include <stdio.h>
#include <string.h>

/* The error message in t->packet as one of ours, with "field: text" in why. */
int message_refused(struct tokend *t)
{
	const struct wire *w = &t->packet->wire;
	struct wire_bytes code = wire_bytes(w, WIRE_CODE), field = wire_bytes(w, WIRE_FIELD),
			  text = wire_bytes(w, WIRE_TEXT);
	int error = TOKEND_EREFUSED;

	if (code.n == 4 && memcmp(code.at, "data", 4) == 0)
		error = TOKEND_EDATA;
	if (code.n == 8 && memcmp(code.at, "protocol", 8) == 0)
		error = TOKEND_EPROTOCOL;
	return handle_fail(t, error, "%.*s%s%.*s", (int)field.n, field.at, field.n ? ": " : "",
		(int)text.n, text.at);
}

int message_unknown(struct tokend *t, const char *what)
{
	return handle_fail(t, TOKEND_EPROTOCOL,
		"socket: what answers at %s is not a tokend we understand (%s): is it of another "
		"version?",
		t->socket, what);
}

/* What is in t->packet is not a message. */
int message_invalid(struct tokend *t)
{
	const struct fault *fault = &t->packet->fault;
	char what[sizeof(fault->field) + sizeof(fault->text) + 2];

	snprintf(what, sizeof(what), "%s: %s", fault->field, fault->text);
	return message_unknown(t, what);
}

/* Is the message in t->packet a warning? It is passed on. */
bool message_warning(struct tokend *t)
{
	struct wire_bytes text = wire_bytes(&t->packet->wire, WIRE_TEXT);
	char line[LIMIT_TEXT_BYTES];

	if (t->packet->wire.op != WIRE_WARNING)
		return false;
	snprintf(line, sizeof(line), "%.*s", (int)text.n, text.at);
	if (t->call.notice)
		t->call.notice(t->call.context, line);
	else if (t->call.warn)
		t->call.warn(t->call.warn_context, line);
	return true;
}

void message_warnings(struct tokend *t)
{
	while (t->fd >= 0) {
		enum link_event what = link_receive(t->fd, t->packet);

		if (what != LINK_MESSAGE && what != LINK_WAKE)
			return;
		if (what == LINK_MESSAGE)
			message_warning(t);
	}
}
