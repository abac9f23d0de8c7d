#include "client/lib/message.h"
#include "proto/phrases.h"

#include <stdio.h>
#include <string.h>

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
	const struct wire *w = &t->packet->wire;
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
	const struct fault *fault = &t->packet->fault;
	char what[sizeof(fault->field) + sizeof(fault->text) + 2];

	snprintf(what, sizeof(what), "%s: %s", fault->field, fault->text);
	return message_unknown(t, what);
}

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
