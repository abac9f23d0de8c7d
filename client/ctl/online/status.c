/* tokctl status: the sessions of a daemon. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/columns.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/store_lines.h"
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members that --json prints, in this order. */
static const char *const session_members[] = {"session", "rank", "world", "micro", "peer", "pid",
	"position", "slots", "published", "released", "full_ms", "lost_wakes", "waits", "waited_ms",
	"memory_bytes", "request", "node", "stream", "run", "host", "slow_ms", "slow_shard",
	"store_wait_ms", "store_wait", NULL};
static const char *const daemon_members[] = {"sessions", "pid", "uptime_ms", "memory_bytes",
	"limit_bytes", "lost_wakes", "io", "config", "slow_ms", "slow_shard", NULL};

static void put_string(struct ctl_out *out, const char *before, const char *text)
{
	ctl_put(out, before);
	ctl_put_string(out, text);
}

/* Puts "first":n,"second":"text"… A text that is absent is empty, a number null. */
static void put_members(struct ctl_out *out, const json_t *item, const char *const *name)
{
	static const char texts[] = " slow_shard store_wait ";
	char word[40];

	for (const char *before = "{\""; *name; name++, before = ",\"") {
		const json_t *value = json_object_get(item, *name);

		ctl_put(out, before);
		ctl_put(out, *name);
		ctl_put(out, "\":");
		snprintf(word, sizeof(word), " %s ", *name);
		if (json_is_integer(value))
			ctl_put_number(out, status_number(item, *name));
		else if (json_is_string(value) || strstr(texts, word))
			ctl_put_string(out, status_text(item, *name));
		else
			ctl_put(out, "null");
	}
}

static void put_json(struct ctl_out *out, const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));

	ctl_put(out, text ? text : "null");
	free(text);
}

/* Writes a line if a read from storage is not answered. */
static bool write_slow(char line[LIMIT_TEXT_BYTES + 200], const json_t *item, const char *stream)
{
	if (!json_object_get(item, "slow_ms"))
		return false;
	snprintf(line, LIMIT_TEXT_BYTES + 200,
		"  stream %s waits for %s: its storage has not answered for %" PRIu64 " s", stream,
		status_text(item, "slow_shard"), status_number(item, "slow_ms") / 1000);
	fault_line(line);
	return true;
}

static const struct ctl_column columns[] = {{"STREAM", false}, {"RUN", false},
	{"RANK of WORLD", true}, {"MICRO", true}, {"POSITION", true}, {"READY", true},
	{"PID", true}};

static void add_session(struct ctl_columns *c, const json_t *s)
{
	char line[LIMIT_TEXT_BYTES + 200];

	ctl_columns_add(c, "%s", status_text(s, "stream"));
	ctl_columns_add(c, "%s", status_text(s, "run"));
	ctl_columns_add(
		c, "%" PRIu64 " of %" PRIu64, status_number(s, "rank"), status_number(s, "world"));
	ctl_columns_add(c, "%" PRIu64, status_number(s, "micro"));
	ctl_columns_add(c, "%" PRIu64, status_number(s, "position"));
	ctl_columns_add(
		c, "%" PRIu64 " of %" PRIu64, status_number(s, "ready"), status_number(s, "slots"));
	ctl_columns_add(c, "%" PRIu64, status_number(s, "pid"));
	if (json_object_get(s, "store_wait_ms")) {
		snprintf(line, sizeof(line), "  waiting %" PRIu64 " s for %s",
			status_number(s, "store_wait_ms") / 1000, status_text(s, "store_wait"));
		ctl_columns_line(c, fault_line(line));
	} else if (write_slow(line, s, status_text(s, "stream"))) {
		ctl_columns_line(c, line);
	}
}

static void put_line(void *out, const char *line)
{
	ctl_put(out, line);
	ctl_put(out, "\n");
}

static void put_total(struct ctl_out *out, const json_t *status, const char *socket)
{
	const json_t *daemon = json_object_get(status, "daemon");
	uint64_t sessions = status_number(daemon, "sessions");
	char line[LIMIT_TEXT_BYTES + 200];

	store_lines(status, put_line, out);
	snprintf(line, sizeof(line),
		"tokend at %s, pid %" PRIu64 ", up %" PRIu64 " s, io %s, %" PRIu64
		" session%s, %" PRIu64 " of %" PRIu64 " bytes of memory, lost wakes %" PRIu64,
		socket, status_number(daemon, "pid"), status_number(daemon, "uptime_ms") / 1000,
		status_text(daemon, "io"), sessions, sessions == 1 ? "" : "s",
		status_number(daemon, "memory_bytes"), status_number(daemon, "limit_bytes"),
		status_number(daemon, "lost_wakes"));
	put_line(out, fault_line(line));
	if (write_slow(line, daemon, status_text(daemon, "slow_stream")))
		put_line(out, line);
}

/* Puts the members "streams", with the digests of their datasets. */
static void put_streams(struct ctl_out *out, const json_t *status)
{
	const char *stream = "";
	json_t *dataset;
	size_t i;

	ctl_put(out, ",\"streams\":[");
	json_array_foreach(json_object_get(status, "datasets"), i, dataset)
	{
		if (strcmp(status_text(dataset, "stream"), stream) != 0) {
			stream = status_text(dataset, "stream");
			put_string(out, i ? "]},{\"stream\":" : "{\"stream\":", stream);
			ctl_put(out, ",\"datasets\":[");
		} else {
			ctl_put(out, ",");
		}
		put_string(out, "{\"dataset\":", status_text(dataset, "dataset"));
		/* Of hexadecimal digits: programs read a larger number than 2^53 wrongly. */
		put_string(out, ",\"digest\":", status_text(dataset, "digest"));
		ctl_put(out, "}");
	}
	ctl_put(out, stream[0] ? "]}]" : "]");
}

static void put_total_json(struct ctl_out *out, const json_t *status, const char *socket)
{
	json_t *stores = json_object_get(status, "stores"),
	       *daemon = json_object_get(status, "daemon"), *store;
	bool none = json_array_size(stores) == 0;
	size_t i;

	json_array_foreach(stores, i, store) json_object_del(store, "first_byte");
	json_object_del(json_object_get(status, "cache"), "failing");
	put_members(out, daemon, daemon_members);
	put_string(out, ",\"socket\":", socket);
	put_string(out, ",\"version\":", status_text(daemon, "version"));
	put_string(out,
		",\"config_digest\":", status_text(json_object_get(status, "config"), "digest"));
	ctl_put(out, ",\"stores\":");
	put_json(out, none ? NULL : stores);
	ctl_put(out, ",\"cache\":");
	put_json(out, none ? NULL : json_object_get(status, "cache"));
	put_streams(out, status);
	ctl_put(out, "}\n");
}

static void put_as_json(struct ctl_out *out, const json_t *status, const char *socket)
{
	json_t *session;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, session)
	{
		put_members(out, session, session_members);
		put_string(out, ",\"daemon\":", socket);
		ctl_put(out, "}\n");
	}
	put_total_json(out, status, socket);
}

struct listing {
	struct ctl_out out;
	struct ctl_columns table;
	struct ctl_link link;
	bool json;
};

/* Puts the sessions of the daemon at l->link. @heading: it is one of several. */
static bool put_daemon(struct listing *l, const struct ctl_daemon *heading)
{
	json_t *status = ctl_ask_status(&l->link, false, NULL, NULL), *session;
	char line[LIMIT_TEXT_BYTES + 200];
	size_t i;
	bool ok = status && l->json;

	if (ok) {
		put_as_json(&l->out, status, l->link.socket);
	} else if (status) {
		if (heading) {
			ctl_put(&l->out, l->out.n ? "\n" : "");
			snprintf(line, sizeof(line), "%s%s, serves %s", heading->path,
				heading->from == PLACE_PRIVATE ? ", private" : "",
				status_text(json_object_get(status, "daemon"), "config"));
			put_line(&l->out, fault_line(line));
		}
		json_array_foreach(json_object_get(status, "sessions"), i, session)
			add_session(&l->table, session);
		ok = ctl_columns_put(&l->table, &l->out);
		put_total(&l->out, status, l->link.socket);
	}
	json_decref(status);
	return ok;
}

static bool put_all(struct listing *l)
{
	struct ctl_daemons found;
	bool ok = ctl_daemons_find(&l->link, &found);

	for (unsigned i = 0; i < found.n; i++) {
		if (!ctl_connect(&l->link, found.daemon[i].path, NULL)) {
			ok = false;
			continue;
		}
		ok = put_daemon(l, found.n > 1 ? &found.daemon[i] : NULL) && ok;
		ctl_disconnect(&l->link);
	}
	ctl_daemons_free(&found);
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
