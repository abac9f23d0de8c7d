/* tokctl status: the sessions of a daemon. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Puts {"first":n,"second":n… without the closing brace. */
static void put_numbers(
	struct ctl_out *out, const struct wire *w, const struct column *columns, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		ctl_put(out, i ? "," : "{");
		ctl_put_pair(out, columns[i].name, wire_number(w, columns[i].key));
	}
}

static void put_if_there(
	struct ctl_out *out, const struct wire *w, enum wire_key key, const char *name)
{
	ctl_put(out, ",");
	if (wire_has(w, key)) {
		ctl_put_pair(out, name, wire_number(w, key));
		return;
	}
	ctl_put(out, "\"");
	ctl_put(out, name);
	ctl_put(out, "\":null");
}

static void put_slow_json(struct ctl_out *out, const struct wire *w)
{
	put_if_there(out, w, WIRE_SLOW_MS, "slow_ms");
	put_text(out, w, WIRE_SLOW_SHARD, "slow_shard");
}

/* Puts a line if a read from storage is not answered. */
static void put_slow(struct ctl_out *out, const struct wire *w)
{
	struct wire_bytes shard = wire_bytes(w, WIRE_SLOW_SHARD),
			  stream = wire_bytes(w, WIRE_STREAM);
	char line[LIMIT_TEXT_BYTES + 200];

	if (!wire_has(w, WIRE_SLOW_MS))
		return;
	snprintf(line, sizeof(line),
		"  stream %.*s waits for %.*s: its storage has not answered for %" PRIu64 " s\n",
		(int)stream.n, stream.at, (int)shard.n, shard.at,
		wire_number(w, WIRE_SLOW_MS) / 1000);
	ctl_put(out, line);
}

static void put_session_json(struct ctl_out *out, const struct wire *w)
{
	static const struct column columns[] = {{WIRE_ID, "session"}, {WIRE_RANK, "rank"},
		{WIRE_WORLD, "world"}, {WIRE_MICRO, "micro"}, {WIRE_PEER, "peer"},
		{WIRE_PID, "pid"}, {WIRE_POSITION, "position"}, {WIRE_SLOTS, "slots"},
		{WIRE_PUBLISHED, "published"}, {WIRE_RELEASED, "released"},
		{WIRE_STALL_MS, "full_ms"}, {WIRE_LOST_WAKES, "lost_wakes"},
		{WIRE_MEMORY_BYTES, "memory_bytes"}, {WIRE_REQUEST_KEY, "request"}};

	put_numbers(out, w, columns, sizeof(columns) / sizeof(columns[0]));
	put_if_there(out, w, WIRE_NODE, "node");
	put_if_there(out, w, WIRE_PINNED, "pinned_bytes");
	put_text(out, w, WIRE_STREAM, "stream");
	put_text(out, w, WIRE_RUN, "run");
	put_text(out, w, WIRE_HOST, "host");
	put_slow_json(out, w);
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
		wire_number(w, WIRE_WORLD), wire_number(w, WIRE_MICRO),
		wire_number(w, WIRE_POSITION),
		wire_number(w, WIRE_PUBLISHED) - wire_number(w, WIRE_RELEASED),
		wire_number(w, WIRE_SLOTS), wire_number(w, WIRE_PID));
	ctl_put(out, line);
	put_slow(out, w);
}

static void put_total_json(struct ctl_out *out, const struct wire *w, const char *socket)
{
	static const struct column columns[] = {{WIRE_SESSIONS, "sessions"}, {WIRE_PID, "pid"},
		{WIRE_UPTIME_MS, "uptime_ms"}, {WIRE_MEMORY_BYTES, "memory_bytes"},
		{WIRE_LIMIT_BYTES, "limit_bytes"}, {WIRE_LOST_WAKES, "lost_wakes"}};

	put_numbers(out, w, columns, sizeof(columns) / sizeof(columns[0]));
	put_text(out, w, WIRE_IO, "io");
	put_text(out, w, WIRE_PATH, "config");
	put_slow_json(out, w);
	ctl_put(out, ",\"socket\":");
	ctl_put_string(out, socket);
	ctl_put(out, "}\n");
}

static void put_total(struct ctl_out *out, const struct wire *w, const char *socket)
{
	struct wire_bytes io = wire_bytes(w, WIRE_IO);
	char line[400];

	snprintf(line, sizeof(line),
		"tokend at %s, pid %" PRIu64 ", up %" PRIu64 " s, io %.*s, %" PRIu64
		" session%s, %" PRIu64 " of %" PRIu64 " bytes of memory, lost wakes %" PRIu64 "\n",
		socket, wire_number(w, WIRE_PID), wire_number(w, WIRE_UPTIME_MS) / 1000, (int)io.n,
		io.at, wire_number(w, WIRE_SESSIONS), wire_number(w, WIRE_SESSIONS) == 1 ? "" : "s",
		wire_number(w, WIRE_MEMORY_BYTES), wire_number(w, WIRE_LIMIT_BYTES),
		wire_number(w, WIRE_LOST_WAKES));
	ctl_put(out, line);
	put_slow(out, w);
}

struct listing {
	struct ctl_out *out;
	bool json, headed;
};

static void put_each(void *context, const struct wire *w)
{
	struct listing *l = context;

	if (w->op != WIRE_SESSION)
		return;
	if (!l->json && !l->headed)
		ctl_put(l->out, "STREAM       RUN               RANK of WORLD MICRO     "
				"POSITION  READY          PID\n");
	l->headed = true;
	(l->json ? put_session_json : put_session)(l->out, w);
}

enum { SOCKET, CONFIG, JSON };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[JSON] = CTL_JSON_OPTION,
};

static int status(const struct ctl_arguments *a)
{
	struct ctl_link *l = malloc(sizeof(*l));
	struct ctl_out out = {0};
	struct listing listing = {.out = &out, .json = ctl_given(a, JSON)};
	bool ok = false;

	if (!l)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(l, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		ok = ctl_status_list(l, put_each, &listing);
		if (ok)
			(listing.json ? put_total_json : put_total)(
				&out, &l->packet.wire, l->socket);
		ctl_disconnect(l);
	}
	free(l);
	return ctl_finish(&out, ok ? CTL_OK : CTL_FAILED);
}

const struct ctl_command ctl_status = {
	.name = "status",
	.help = "print the sessions of a running daemon",
	.about = "Prints one line per session (an attached trainer process): stream, run, rank, "
		 "rows per batch, position of the next batch, batches that are ready, and pid. The "
		 "last line is about the daemon. lost wakes counts wake-ups that did not reach a "
		 "trainer, and must be 0.",
	.examples = CTL_EXAMPLES({"list the sessions", "tokctl status -c tokend.yaml"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = status,
};
