/* tokctl status: what a daemon is doing, session by session. */
#include "../../proto/wire.h"
#include "../connect.h"
#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_MS = 5000 };

/* The next message within ANSWER_MS. */
static bool receive(int fd, struct packet *packet)
{
	struct pollfd p = {fd, POLLIN, 0};

	for (;;) {
		switch (link_receive(fd, packet)) {
		case LINK_MESSAGE:
			return true;
		case LINK_CLOSED:
			ctl_fail("the daemon closed the connection");
			return false;
		case LINK_FAULT:
			ctl_fail("not a daemon that speaks our protocol: %s", packet->fault);
			return false;
		case LINK_WAKE:
			continue;
		case LINK_NOTHING:
			break;
		}
		if (poll(&p, 1, ANSWER_MS) == 0) {
			ctl_fail("no answer within %d s", ANSWER_MS / 1000);
			return false;
		}
	}
}

static bool ask(int fd, const struct wire *question, struct packet *packet)
{
	int error = link_send(fd, question, packet->bytes);

	if (error < 0) {
		ctl_fail("cannot write to the daemon: %s", strerror(-error));
		return false;
	}
	if (!receive(fd, packet))
		return false;
	if (packet->wire.op != WIRE_ERROR)
		return true;

	struct wire_bytes text = wire_bytes(&packet->wire, WIRE_TEXT);

	ctl_fail("refused: %.*s", (int)text.n, text.at);
	return false;
}

static void put_text(struct ctl_out *out, const struct wire *w, enum wire_key key, const char *name)
{
	char text[LIMIT_TEXT_BYTES + 1];

	if (!wire_text(w, key, text, sizeof(text)))
		text[0] = 0;
	ctl_put(out, ",\"");
	ctl_put(out, name);
	ctl_put(out, "\":");
	ctl_put_string(out, text);
}

struct column {
	enum wire_key key;
	const char *name;
};

/* "{first":n,"second":n… without the closing brace. */
static void put_numbers(struct ctl_out *out, const struct wire *w, const struct column *columns, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		ctl_put(out, i ? "," : "{");
		ctl_put_pair(out, columns[i].name, wire_number(w, columns[i].key));
	}
}

static void put_session_json(struct ctl_out *out, const struct wire *w)
{
	static const struct column columns[] = {{WIRE_ID, "session"}, {WIRE_RANK, "rank"},
		{WIRE_WORLD, "world"}, {WIRE_MICRO, "micro"}, {WIRE_PEER, "peer"}, {WIRE_PID, "pid"},
		{WIRE_POSITION, "position"}, {WIRE_SLOTS, "slots"}, {WIRE_PUBLISHED, "published"},
		{WIRE_RELEASED, "released"}, {WIRE_STALL_MS, "full_ms"}, {WIRE_LOST_WAKES, "lost_wakes"},
		{WIRE_MEMORY_BYTES, "memory_bytes"}};

	put_numbers(out, w, columns, sizeof(columns) / sizeof(columns[0]));
	put_text(out, w, WIRE_STREAM, "stream");
	put_text(out, w, WIRE_RUN, "run");
	put_text(out, w, WIRE_HOST, "host");
	ctl_put(out, "}\n");
}

static void put_session(struct ctl_out *out, const struct wire *w)
{
	char line[400];
	struct wire_bytes stream = wire_bytes(w, WIRE_STREAM), run = wire_bytes(w, WIRE_RUN);

	snprintf(line, sizeof(line),
		"%-12.*s %-16.*s %5" PRIu64 " of %-5" PRIu64 " %5" PRIu64 " %12" PRIu64 " %3" PRIu64
		" of %-3" PRIu64 " %8" PRIu64 "\n",
		(int)stream.n, stream.at, (int)run.n, run.at, wire_number(w, WIRE_RANK),
		wire_number(w, WIRE_WORLD), wire_number(w, WIRE_MICRO), wire_number(w, WIRE_POSITION),
		wire_number(w, WIRE_PUBLISHED) - wire_number(w, WIRE_RELEASED), wire_number(w, WIRE_SLOTS),
		wire_number(w, WIRE_PID));
	ctl_put(out, line);
}

static void put_total_json(struct ctl_out *out, const struct wire *w, const char *socket)
{
	static const struct column columns[] = {{WIRE_SESSIONS, "sessions"}, {WIRE_PID, "pid"},
		{WIRE_UPTIME_MS, "uptime_ms"}, {WIRE_MEMORY_BYTES, "memory_bytes"},
		{WIRE_LIMIT_BYTES, "limit_bytes"}, {WIRE_LOST_WAKES, "lost_wakes"}};

	put_numbers(out, w, columns, sizeof(columns) / sizeof(columns[0]));
	put_text(out, w, WIRE_IO, "io");
	put_text(out, w, WIRE_PATH, "config");
	ctl_put(out, ",\"socket\":");
	ctl_put_string(out, socket);
	ctl_put(out, "}\n");
}

static void put_total(struct ctl_out *out, const struct wire *w, const char *socket)
{
	struct wire_bytes io = wire_bytes(w, WIRE_IO);
	char line[400];

	snprintf(line, sizeof(line),
		"tokend at %s, pid %" PRIu64 ", up %" PRIu64 " s, io %.*s, %" PRIu64 " sessions, %" PRIu64
		" of %" PRIu64 " bytes, lost wakes %" PRIu64 "\n",
		socket, wire_number(w, WIRE_PID), wire_number(w, WIRE_UPTIME_MS) / 1000, (int)io.n, io.at,
		wire_number(w, WIRE_SESSIONS), wire_number(w, WIRE_MEMORY_BYTES),
		wire_number(w, WIRE_LIMIT_BYTES), wire_number(w, WIRE_LOST_WAKES));
	ctl_put(out, line);
}

/* All pages: each a few sessions, then a total that says where the next begins. */
static bool list(int fd, const char *socket, bool json, struct packet *packet, struct ctl_out *out)
{
	struct wire hello = {.op = WIRE_HELLO}, question = {.op = WIRE_STATUS};
	bool headed = json;

	wire_set(&hello, WIRE_VERSION_KEY, WIRE_VERSION);
	if (!ask(fd, &hello, packet))
		return false;
	wire_set(&question, WIRE_AFTER, 0);
	do {
		if (!ask(fd, &question, packet))
			return false;
		while (packet->wire.op == WIRE_SESSION) {
			if (!headed)
				ctl_put(out, "STREAM       RUN               RANK of WORLD MICRO     "
					     "POSITION  READY          PID\n");
			headed = true;
			if (json)
				put_session_json(out, &packet->wire);
			else
				put_session(out, &packet->wire);
			if (!receive(fd, packet))
				return false;
		}
		wire_set(&question, WIRE_AFTER, wire_number(&packet->wire, WIRE_AFTER));
	} while (wire_number(&packet->wire, WIRE_AFTER) != 0);
	if (json)
		put_total_json(out, &packet->wire, socket);
	else
		put_total(out, &packet->wire, socket);
	return true;
}

int ctl_status(int argc, char **argv)
{
	static struct packet packet;
	static struct ctl_out out;
	const char *given = NULL, *config = NULL;
	bool json = false, ok;
	const struct ctl_option options[] = {
		{.name = "socket", .value = &given},
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "json", .flag = &json},
	};
	int others = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
	char *socket;
	int fd;

	if (others < 0)
		return CTL_USAGE;
	if (others > 0)
		return ctl_usage("status", "'%s' is one word too many", argv[1]);
	socket = ctl_socket(given, config);
	if (!socket)
		return CTL_FAILED;
	fd = link_open(socket);
	if (fd < 0) {
		ctl_fail("no daemon at %s: %s; start one with tokend -c FILE, or name its --socket", socket,
			strerror(-fd));
		free(socket);
		return CTL_FAILED;
	}
	ok = list(fd, socket, json, &packet, &out);
	close(fd);
	free(socket);
	return ctl_finish(&out, ok ? CTL_OK : CTL_FAILED);
}
