#include "client/ctl/online/talk.h"

#include "proto/phrases.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { REPLY_MS = 5000 };

bool ctl_link_fail(struct ctl_link *l, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(l->why, sizeof(l->why), format, args);
	va_end(args);
	if (!l->quiet)
		ctl_fail("%s", l->why);
	return false;
}

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

enum ctl_heard ctl_hear(struct ctl_link *l, int ms, struct pollfd other)
{
	struct pollfd p[] = {{l->fd, POLLIN, 0}, other};

	for (;;) {
		switch (link_receive(l->fd, &l->packet)) {
		case LINK_MESSAGE:
			return CTL_MESSAGE;
		case LINK_CLOSED:
			return CTL_LOST;
		case LINK_FAULT:
			ctl_link_fail(l,
				"unexpected message from the daemon: %s: %s; " PHRASE_RELEASE,
				l->packet.fault.field, l->packet.fault.text);
			return CTL_BAD;
		case LINK_WAKE:
			continue;
		case LINK_NOTHING:
			break;
		}

		int n = poll(p, 2, ms);

		if (n > 0 && p[1].revents)
			return CTL_OTHER;
		if (n == 0)
			return CTL_TIMEOUT;
	}
}

/* The next message; false after an error. */
static bool receive(struct ctl_link *l, int ms)
{
	switch (ctl_hear(l, ms, (struct pollfd){-1, 0, 0})) {
	case CTL_MESSAGE:
		return true;
	case CTL_LOST:
		return ctl_link_fail(l,
			"the daemon closed the connection (it stopped or was killed); try again "
			"when it is back");
	case CTL_TIMEOUT:
		return ctl_link_fail(l,
			"no reply from %s within %d s; continue its daemon (SIGCONT), or kill it",
			l->socket, ms / 1000);
	default:
		return false;
	}
}

/* True if the last message is an error, which then is ours. */
static bool refused(struct ctl_link *l)
{
	struct wire_bytes text = wire_bytes(&l->packet.wire, WIRE_TEXT);

	return l->packet.wire.op == WIRE_ERROR &&
	       !ctl_link_fail(l, "the daemon refused: %.*s", (int)text.n, text.at);
}

bool ctl_ask(struct ctl_link *l, struct wire *query, enum wire_op reply)
{
	const struct wire *w = &l->packet.wire;
	struct fault fault;

	wire_set(query, WIRE_SERIAL, ++l->serial);
	if (!link_send(l->fd, query, l->packet.bytes, &fault) && !link_closed(&fault))
		return ctl_link_fail(l, "%s", fault.text);
	for (;;) {
		if (!receive(l, REPLY_MS))
			return false;
		uint64_t serial = wire_number(w, WIRE_SERIAL);

		/* An error without a serial concerns the connection. */
		if ((serial == l->serial && (w->op == reply || w->op == WIRE_ERROR)) ||
			(serial == 0 && w->op == WIRE_ERROR))
			return !refused(l);
		if (l->answered && w->op == WIRE_ANSWER)
			l->answered(l->context, w);
	}
}

bool ctl_open(struct ctl_link *l, const char *path)
{
	struct fault fault;

	l->serial = 0;
	l->packet.fds = 0;
	if (path != l->socket)
		snprintf(l->socket, sizeof(l->socket), "%s", path);
	l->fd = link_open(path, LINK_OPERATOR, l->packet.bytes, &fault);
	l->untrusted = l->fd < 0 && fault.code == FAULT_PERMISSION;
	if (l->untrusted)
		ctl_link_fail(l, "%s: %s", fault.field, fault.text);
	else if (l->fd < 0)
		ctl_link_fail(l, "%s; %s", fault.text,
			fault.error == EACCES	? PHRASE_DENIED
			: fault.error == EAGAIN ? "try again"
						: PHRASE_START);
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
}

/* ---- documents ---- */

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

json_t *ctl_ask_status(struct ctl_link *l, bool public)
{
	struct wire query = {.op = WIRE_STATUS};
	const struct wire *w = &l->packet.wire;
	json_t *page, *all = json_pack("{s:[], s:[], s:[], s:[], s:[], s:[], s:[]}", "requests",
			      "faults", "stores", "streams", "datasets", "runs", "sessions");
	char config[PATH_MAX];

	wire_set(&query, WIRE_AFTER, 0);
	if (public)
		wire_set(&query, WIRE_PUBLIC, 1);
	do {
		page = NULL;
		if (ctl_ask(l, &query, WIRE_STATUS)) {
			struct wire_bytes args = wire_bytes(w, WIRE_ARGS);

			page = json_loadb(args.at ? args.at : "", args.n, 0, NULL);
			if (!page)
				ctl_link_fail(l, "unexpected message from the daemon: args: not "
						 "JSON; " PHRASE_RELEASE);
		}
		if (!page) {
			json_decref(all);
			return NULL;
		}
		add_page(all, page);
		json_decref(page);
		wire_set(&query, WIRE_AFTER, wire_number(w, WIRE_AFTER));
	} while (wire_number(&query, WIRE_AFTER) != 0);
	if (!all)
		ctl_link_fail(l, PHRASE_MEMORY);
	if (wire_text(w, WIRE_PATH, config, sizeof(config))) /* it need not be UTF-8 */
		json_object_set_new_nocheck(
			json_object_get(all, "daemon"), "config", json_string_nocheck(config));
	return all;
}

json_t *ctl_status_at(struct ctl_link *l, const char *path, bool public)
{
	json_t *status = NULL;

	if (ctl_open(l, path))
		status = ctl_ask_status(l, public);
	ctl_disconnect(l);
	return status;
}

json_t *ctl_status_of(struct ctl_link *l, const struct ctl_arguments *a, bool public)
{
	return ctl_choose(l, a, NULL, NULL) ? ctl_status_at(l, l->socket, public) : NULL;
}
