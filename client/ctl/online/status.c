/* tokctl status: the sessions of a daemon. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/columns.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/socket.h"
#include "client/ctl/online/store_lines.h"
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"
#include "proto/status_members.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Puts {"first":n,"second":n… without the closing brace. */
static void put_numbers(
	struct ctl_out *out, const struct wire *w, const struct status_member *member)
{
	for (const char *before = "{"; member->name; member++, before = ",") {
		ctl_put(out, before);
		ctl_put_pair(out, member->name, wire_number(w, member->key));
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

/* In hexadecimal digits: programs read a larger number than 2^53 wrongly. */
static void put_digest(struct ctl_out *out, const struct wire *w, const char *name)
{
	char text[64];

	if (wire_has(w, WIRE_DIGEST))
		snprintf(text, sizeof(text), ",\"%s\":\"%016" PRIx64 "\"", name,
			wire_number(w, WIRE_DIGEST));
	else
		snprintf(text, sizeof(text), ",\"%s\":null", name);
	ctl_put(out, text);
}

static void put_slow_json(struct ctl_out *out, const struct wire *w)
{
	put_if_there(out, w, WIRE_SLOW_MS, "slow_ms");
	put_text(out, w, WIRE_SLOW_SHARD, "slow_shard");
}

/* Writes a line if a read from storage is not answered. */
static bool write_slow(char line[LIMIT_TEXT_BYTES + 200], const struct wire *w)
{
	struct wire_bytes shard = wire_bytes(w, WIRE_SLOW_SHARD),
			  stream = wire_bytes(w, WIRE_STREAM);

	if (!wire_has(w, WIRE_SLOW_MS))
		return false;
	snprintf(line, LIMIT_TEXT_BYTES + 200,
		"  stream %.*s waits for %.*s: its storage has not answered for %" PRIu64 " s",
		(int)stream.n, stream.at, (int)shard.n, shard.at,
		wire_number(w, WIRE_SLOW_MS) / 1000);
	fault_line(line);
	return true;
}

static void put_session_json(struct ctl_out *out, const struct wire *w, const char *socket)
{
	put_numbers(out, w, status_session_members);
	put_if_there(out, w, WIRE_NODE, "node");
	put_text(out, w, WIRE_STREAM, "stream");
	put_text(out, w, WIRE_RUN, "run");
	put_text(out, w, WIRE_HOST, "host");
	put_slow_json(out, w);
	put_if_there(out, w, WIRE_STORE_WAIT_MS, "store_wait_ms");
	put_text(out, w, WIRE_TEXT, "store_wait");
	ctl_put(out, ",\"daemon\":");
	ctl_put_string(out, socket);
	ctl_put(out, "}\n");
}

static const struct ctl_column columns[] = {{"STREAM", false}, {"RUN", false},
	{"RANK of WORLD", true}, {"MICRO", true}, {"POSITION", true}, {"READY", true},
	{"PID", true}};

static void add_session(struct ctl_columns *c, const struct wire *w)
{
	struct wire_bytes stream = wire_bytes(w, WIRE_STREAM), run = wire_bytes(w, WIRE_RUN);
	char line[LIMIT_TEXT_BYTES + 200] = "  ";

	ctl_columns_add(c, "%.*s", (int)stream.n, stream.at);
	ctl_columns_add(c, "%.*s", (int)run.n, run.at);
	ctl_columns_add(c, "%" PRIu64 " of %" PRIu64, wire_number(w, WIRE_RANK),
		wire_number(w, WIRE_WORLD));
	ctl_columns_add(c, "%" PRIu64, wire_number(w, WIRE_MICRO));
	ctl_columns_add(c, "%" PRIu64, wire_number(w, WIRE_POSITION));
	ctl_columns_add(c, "%" PRIu64 " of %" PRIu64,
		wire_number(w, WIRE_PUBLISHED) - wire_number(w, WIRE_RELEASED),
		wire_number(w, WIRE_SLOTS));
	ctl_columns_add(c, "%" PRIu64, wire_number(w, WIRE_PID));
	if (store_wait_line(w, line + 2) || write_slow(line, w))
		ctl_columns_line(c, line);
}

static void put_total_json(struct ctl_out *out, const struct wire *w, const char *socket)
{
	char *stores = store_members(w);

	put_numbers(out, w, status_daemon_members);
	put_text(out, w, WIRE_IO, "io");
	put_text(out, w, WIRE_PATH, "config");
	put_slow_json(out, w);
	ctl_put(out, ",\"socket\":");
	ctl_put_string(out, socket);
	put_text(out, w, WIRE_RELEASE, "version");
	put_digest(out, w, "config_digest");
	if (stores)
		ctl_put(out, stores);
	free(stores);
}

static void put_line(void *out, const char *line)
{
	ctl_put(out, line);
	ctl_put(out, "\n");
}

static void put_total(struct ctl_out *out, const struct wire *w, const char *socket)
{
	struct wire_bytes io = wire_bytes(w, WIRE_IO);
	char line[LIMIT_TEXT_BYTES + 200];

	store_lines(w, put_line, out);
	snprintf(line, sizeof(line),
		"tokend at %s, pid %" PRIu64 ", up %" PRIu64 " s, io %.*s, %" PRIu64
		" session%s, %" PRIu64 " of %" PRIu64 " bytes of memory, lost wakes %" PRIu64,
		socket, wire_number(w, WIRE_PID), wire_number(w, WIRE_UPTIME_MS) / 1000, (int)io.n,
		io.at, wire_number(w, WIRE_SESSIONS), wire_number(w, WIRE_SESSIONS) == 1 ? "" : "s",
		wire_number(w, WIRE_MEMORY_BYTES), wire_number(w, WIRE_LIMIT_BYTES),
		wire_number(w, WIRE_LOST_WAKES));
	put_line(out, fault_line(line));
	if (write_slow(line, w))
		put_line(out, line);
}

struct listing {
	struct ctl_out out;
	struct ctl_columns table;
	struct ctl_link link;
	bool json;
	char stream[LIMIT_NAME_BYTES + 1]; /* the last one that was put; "": none */
};

static void put_each(void *context, const struct wire *w)
{
	struct listing *l = context;

	if (w->op != WIRE_SESSION)
		return;
	if (l->json)
		put_session_json(&l->out, w, l->link.socket);
	else
		add_session(&l->table, w);
}

static void put_dataset(void *context, const struct wire *w)
{
	struct listing *l = context;
	char stream[LIMIT_NAME_BYTES + 1], dataset[LIMIT_NAME_BYTES + 1];

	if (w->op != WIRE_DATASET_OP || !wire_text(w, WIRE_STREAM, stream, sizeof(stream)) ||
		!wire_text(w, WIRE_DATASET, dataset, sizeof(dataset)))
		return;
	if (strcmp(stream, l->stream) != 0) {
		ctl_put(&l->out, l->stream[0] ? "]},{\"stream\":" : "{\"stream\":");
		ctl_put_string(&l->out, stream);
		ctl_put(&l->out, ",\"datasets\":[");
	} else {
		ctl_put(&l->out, ",");
	}
	memcpy(l->stream, stream, sizeof(stream));
	ctl_put(&l->out, "{\"dataset\":");
	ctl_put_string(&l->out, dataset);
	put_digest(&l->out, w, "digest");
	ctl_put(&l->out, "}");
}

/* Ends the last line of a daemon with its streams; of an older one, without. */
static void put_streams(struct listing *l)
{
	bool known = wire_has(&l->link.packet.wire, WIRE_RELEASE);

	l->stream[0] = 0;
	ctl_put(&l->out, known ? ",\"streams\":[" : ",\"streams\":null}\n");
	if (!known)
		return;
	ctl_stream_list(&l->link, put_dataset, l);
	ctl_put(&l->out, l->stream[0] ? "]}]}\n" : "]}\n");
}

/* Puts the sessions of the daemon at l->link. @heading: it is one of several. */
static bool put_daemon(struct listing *l, const struct place *heading)
{
	bool ok = ctl_status_list(&l->link, put_each, l);
	const struct wire *w = &l->link.packet.wire;
	struct wire_bytes config = wire_bytes(w, WIRE_PATH);
	char line[LIMIT_TEXT_BYTES + 200];

	if (ok && heading && !l->json) {
		ctl_put(&l->out, l->out.n ? "\n" : "");
		snprintf(line, sizeof(line), "%s%s, serves %.*s", heading->path,
			heading->from == PLACE_PRIVATE ? ", private" : "", (int)config.n,
			config.at);
		put_line(&l->out, fault_line(line));
	}
	ok = ctl_columns_put(&l->table, &l->out) && ok;
	if (ok && l->json) {
		put_total_json(&l->out, w, l->link.socket);
		put_streams(l);
	} else if (ok) {
		put_total(&l->out, w, l->link.socket);
	}
	return ok;
}

static bool put_all(struct listing *l)
{
	struct ctl_sockets found;
	bool ok = ctl_sockets_find(&found);

	for (unsigned i = 0; i < found.n; i++) {
		if (!ctl_connect(&l->link, found.place[i].path, NULL)) {
			ok = false;
			continue;
		}
		ok = put_daemon(l, found.n > 1 ? &found.place[i] : NULL) && ok;
		ctl_disconnect(&l->link);
	}
	ctl_sockets_free(&found);
	return ok;
}

enum { SOCKET, CONFIG, JSON };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[JSON] = CTL_JSON_OPTION,
};

static int status(const struct ctl_arguments *a)
{
	const char *socket = ctl_text(a, SOCKET), *config = ctl_text(a, CONFIG);
	struct listing *l = calloc(1, sizeof(*l));
	bool ok = false;

	if (!l)
		return ctl_fail(PHRASE_MEMORY);
	l->json = ctl_given(a, JSON);
	l->table = (struct ctl_columns){columns, sizeof(columns) / sizeof(columns[0]), 0, 0, 0};
	if (!ctl_socket_named(socket, config)) {
		ok = put_all(l);
	} else if (ctl_connect(&l->link, socket, config)) {
		ok = put_daemon(l, NULL);
		ctl_disconnect(&l->link);
	}
	int code = ctl_finish(&l->out, ok ? CTL_OK : CTL_FAILED);

	free(l);
	return code;
}

const struct ctl_command ctl_status = {
	.name = "status",
	.help = "print the sessions of a running daemon",
	.about =
		"Without --socket, -c and $TOKEND_SOCKET, prints all daemons that are found, also "
		"private ones, one after the other.\n\n"
		"Prints one line per session (an attached trainer process): stream, run, rank, "
		"rows per batch, position of the next batch, batches that are ready, and pid. Then "
		"a line per object store and one for the cache, if there are any. The "
		"last line is about the daemon. lost wakes counts wake-ups that did not reach a "
		"trainer, and must be 0.",
	.examples = CTL_EXAMPLES({"list the sessions", "tokctl status -c tokend.yaml"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = status,
};
