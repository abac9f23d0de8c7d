#include "client/ctl/online/talk.h"

#include "client/ctl/common/error.h"
#include "client/ctl/online/socket.h"
#include "proto/phrases.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
	REPLY_MS = 5000,
	CACHE_MS = 25000, /* the daemon waits for the cache's disk for 20 s */
};

int ctl_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

enum ctl_heard ctl_hear(struct ctl_link *l, int ms, int other)
{
	enum ctl_heard heard =
		ctl_hear_packet(l->fd, &l->packet, ms, (struct pollfd){other, POLLIN, 0});

	if (heard == CTL_BAD)
		ctl_fail("unexpected message from the daemon: %s: %s; " PHRASE_RELEASE,
			l->packet.fault.field, l->packet.fault.text);
	return heard;
}

/* The next message; false after an error. */
static bool receive(struct ctl_link *l, int ms)
{
	switch (ctl_hear(l, ms, -1)) {
	case CTL_MESSAGE:
		return true;
	case CTL_LOST:
		ctl_fail("the daemon closed the connection (it stopped or was killed); try again "
			 "when it is back");
		break;
	case CTL_TIMEOUT:
		ctl_fail("no reply from the daemon within %d s", ms / 1000);
		break;
	default:
		break;
	}
	return false;
}

/* Is the last message an error? Prints it. */
static bool refused(const struct ctl_link *l)
{
	struct wire_bytes text = wire_bytes(&l->packet.wire, WIRE_TEXT);

	if (l->packet.wire.op != WIRE_ERROR)
		return false;
	ctl_fail("the daemon refused: %.*s", (int)text.n, text.at);
	return true;
}

bool ctl_exchange(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context)
{
	const struct wire *w = &l->packet.wire;
	struct fault fault;

	wire_set(query, WIRE_SERIAL, ++l->serial);
	if (!link_send(l->fd, query, l->packet.bytes, &fault) && !link_closed(&fault)) {
		ctl_fail("%s", fault.text);
		return false;
	}
	for (;;) {
		if (!receive(l, query->op == WIRE_CACHE ? CACHE_MS : REPLY_MS))
			return false;
		uint64_t serial = wire_number(w, WIRE_SERIAL);

		/* An error without a serial concerns the connection. */
		if ((serial == l->serial && (w->op == reply || w->op == WIRE_ERROR)) ||
			(serial == 0 && w->op == WIRE_ERROR))
			return true;
		if (each)
			each(context, w);
	}
}

bool ctl_ask(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context)
{
	return ctl_exchange(l, query, reply, each, context) && !refused(l);
}

bool ctl_connect(struct ctl_link *l, const char *given, const char *config)
{
	struct fault fault;

	l->fd = -1;
	l->serial = 0;
	l->packet.fds = 0;
	l->socket = ctl_socket(given, config);
	if (!l->socket)
		return false;
	l->fd = link_open(l->socket, LINK_OPERATOR, l->packet.bytes, &fault);
	if (l->fd < 0 && fault.code == FAULT_PERMISSION)
		ctl_fail("%s: %s", fault.field, fault.text);
	else if (l->fd < 0 && fault.error == EACCES)
		ctl_fail("%s; " PHRASE_DENIED, fault.text);
	else if (l->fd < 0)
		ctl_fail("%s; " PHRASE_START, fault.text);
	else if (receive(l, REPLY_MS) && !refused(l))
		return true;
	ctl_disconnect(l);
	return false;
}

void ctl_disconnect(struct ctl_link *l)
{
	packet_close(&l->packet);
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	free(l->socket);
	l->socket = NULL;
}

/* Adds the items of a page to the document @all. */
static void add_page(json_t *all, const json_t *page)
{
	const char *name;
	json_t *item, *value, *list;
	size_t i;

	json_array_foreach(page, i, item) json_object_foreach(item, name, value)
	{
		list = json_object_get(all, name);
		if (!json_is_array(list))
			json_object_set(all, name, value);
		else if (json_is_array(value))
			json_array_extend(list, value);
		else
			json_array_append(list, value);
	}
}

json_t *ctl_ask_status(struct ctl_link *l, bool public, ctl_each *each, void *context)
{
	struct wire query = {.op = WIRE_STATUS};
	const struct wire *w = &l->packet.wire;
	json_t *page, *all = json_pack("{s:[], s:[], s:[], s:[], s:[], s:[], s:[]}", "requests",
			      "faults", "stores", "streams", "datasets", "runs", "sessions");
	char config[LIMIT_TEXT_BYTES];

	wire_set(&query, WIRE_AFTER, 0);
	if (public)
		wire_set(&query, WIRE_PUBLIC, 1);
	do {
		page = NULL;
		if (ctl_ask(l, &query, WIRE_STATUS, each, context)) {
			page = json_loadb(
				wire_bytes(w, WIRE_ARGS).at, wire_bytes(w, WIRE_ARGS).n, 0, NULL);
			if (!page || !all)
				ctl_fail("unexpected message from the daemon: args: not "
					 "JSON; " PHRASE_RELEASE);
		}
		add_page(all, page);
		if (!page || !all) {
			json_decref(page);
			json_decref(all);
			return NULL;
		}
		json_decref(page);
		wire_set(&query, WIRE_AFTER, wire_number(w, WIRE_AFTER));
	} while (wire_number(&query, WIRE_AFTER) != 0);
	if (wire_text(w, WIRE_PATH, config, sizeof(config))) /* it need not be UTF-8 */
		json_object_set_new_nocheck(
			json_object_get(all, "daemon"), "config", json_string_nocheck(config));
	return all;
}
