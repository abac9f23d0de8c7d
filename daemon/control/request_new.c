#include "daemon/control/request_new.h"

#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_NAMED = 8 }; /* in one message */

/* Do all sessions of the run belong to this user? */
static bool is_all_of(const struct control *control, uid_t uid, const char *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (session_is_of(control->sessions.of[id], stream, run) &&
			control->sessions.of[id]->connection->uid != uid)
			return false;
	return true;
}

/* May the user of @c change this run? */
static bool may_change(const struct connection *c, const struct stream *stream, const char *run)
{
	const struct control *control = c->control;
	const char *name = stream->config->name;

	if (runs_privileged(control->config, c->uid))
		return true;
	return runs_owns(control->runs, c->uid, name, run) &&
	       (runs_known(control->runs) || is_all_of(control, c->uid, name, run));
}

/* Lists the runs attached on @stream that @c may change, separated by commas. Returns their number.
 */
static unsigned name_runs(
	const struct connection *c, const struct stream *stream, char *to, size_t room)
{
	const struct control *control = c->control;
	const char *seen[RUNS_NAMED + 1];
	unsigned n = 0;
	size_t length = 0;

	to[0] = 0;
	for (uint32_t id = 0; id < LIMIT_SESSIONS && n <= RUNS_NAMED; id++) {
		const struct session *s = control->sessions.of[id];
		unsigned i = 0;

		if (!s || !request_concerns(s, stream, s->run) || !may_change(c, stream, s->run))
			continue;
		while (i < n && strcmp(seen[i], s->run) != 0)
			i++;
		if (i < n)
			continue;
		seen[n++] = s->run;
		length += (size_t)snprintf(to + length, room - length, "%s%s", n > 1 ? ", " : "",
			n > RUNS_NAMED ? "…" : s->run);
	}
	return n;
}

static bool is_attached(const struct control *control, const struct stream *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (control->sessions.of[id] && request_concerns(control->sessions.of[id], stream,
							run ? run : control->sessions.of[id]->run))
			return true;
	return false;
}

/* Takes the run that @w names. */
static bool find_named(const struct connection *c, struct request *r, const struct wire *w,
	const char *runs, struct fault *fault)
{
	const char *stream = r->stream->config->name;

	if (!wire_text(w, WIRE_RUN, r->run, sizeof(r->run)) || !wire_name_ok(r->run))
		return fault_set(fault, FAULT_REQUEST, "run", "must be " PHRASE_NAME);
	runs_rename(c->control->runs, c->uid, stream, r->run);
	if (!is_attached(c->control, r->stream, r->run))
		return fault_set(fault, FAULT_REQUEST, "run",
			"run %s is not attached on stream %s; attached: %s", r->run, stream,
			runs[0] ? runs : "runs of other users");
	if (!may_change(c, r->stream, r->run))
		return fault_set(fault, FAULT_REQUEST, "run",
			"run %s belongs to someone else; only its owner, root and admin_uids may "
			"change it, not uid %u",
			r->run, (unsigned)c->uid);
	return true;
}

/* Takes the run that @w names, or the only one that the operator may change. */
static bool find_run(
	const struct connection *c, struct request *r, const struct wire *w, struct fault *fault)
{
	char runs[(RUNS_NAMED + 1) * (LIMIT_NAME_BYTES + 2)];
	unsigned n = name_runs(c, r->stream, runs, sizeof(runs));
	const char *stream = r->stream->config->name;

	if (!is_attached(c->control, r->stream, NULL))
		return fault_set(fault, FAULT_REQUEST, "stream",
			"no session is attached on stream %s at this daemon", stream);
	if (wire_has(w, WIRE_RUN))
		return find_named(c, r, w, runs, fault);
	if (n == 0)
		return fault_set(fault, FAULT_REQUEST, "run",
			"only runs of other users are attached on stream %s; their owners, root "
			"and admin_uids may change them, not uid %u",
			stream, (unsigned)c->uid);
	if (n > 1)
		return fault_set(fault, FAULT_REQUEST, "run",
			"several runs are attached on stream %s; name one of %s", stream, runs);
	memcpy(r->run, runs, strlen(runs) + 1);
	return true;
}

/* A run and an operator's connection have one request at a time. */
static bool find_room(struct connection *c, const struct request *r, struct fault *fault)
{
	uint64_t now = connection_now(c);

	for (const struct request *other = c->control->requests.first; other; other = other->next) {
		if (other->stream->slot != r->stream->slot || strcmp(other->run, r->run) != 0)
			continue;

		const struct participant *p = other->participant;

		while (!participant_waits(p)) /* at least one does, otherwise it would have ended */
			p++;
		return fault_set(fault, FAULT_REQUEST, "run",
			"run %s has had an open request for %" PRIu64 " s: %s, number %" PRIu64
			"; rank %" PRIu64 " (pid %d on %s) has not answered%s",
			r->run, (now - other->since_ms) / 1000, other->kind, other->number, p->rank,
			(int)p->pid, p->host[0] ? p->host : "?",
			request_waiting(other) > 1 ? ", nor have other ranks" : "");
	}
	if (c->request)
		return fault_set(fault, FAULT_REQUEST, "connection",
			"already waits for another request; open another connection");
	return true;
}

static bool read_request(
	struct connection *c, struct request *r, const struct wire *w, struct fault *fault)
{
	char name[LIMIT_NAME_BYTES + 1], list[NEAREST_LIST_BYTES];
	struct wire_bytes args = wire_bytes(w, WIRE_ARGS);

	if (!wire_text(w, WIRE_STREAM, name, sizeof(name)) || !wire_name_ok(name))
		return fault_set(fault, FAULT_REQUEST, "stream", "must be " PHRASE_NAME);
	r->generation = generation_hold(c->control->generations.newest);
	r->stream = catalog_stream(r->generation->catalog, name);
	if (!r->stream)
		return fault_set(fault, FAULT_REQUEST, "stream", PHRASE_NO_STREAM, name,
			c->control->config->path,
			config_list_streams(c->control->config, name, list));
	if (!wire_text(w, WIRE_KIND, r->kind, sizeof(r->kind)) || !wire_name_ok(r->kind))
		return fault_set(fault, FAULT_REQUEST, "kind", "must be a name of 1 to %zu bytes",
			sizeof(r->kind) - 1);
	if (args.n >= WIRE_ARGS_BYTES)
		return fault_set(fault, FAULT_REQUEST, "args", "%u bytes; must be fewer than %d",
			args.n, WIRE_ARGS_BYTES);
	r->args = malloc(args.n + 1);
	if (!r->args)
		return fault_set(fault, FAULT_MEMORY, "args", "out of memory");
	if (!wire_text(w, WIRE_ARGS, r->args, args.n + 1))
		return fault_set(fault, FAULT_REQUEST, "args", "contains a 0 byte");
	if (!find_run(c, r, w, fault) || !find_room(c, r, fault))
		return false;
	return request_invite(c->control, r) ||
	       fault_set(fault, FAULT_MEMORY, "sessions", "out of memory");
}

/* Logs a request, its arguments in one line. */
static void log_request(const struct connection *c, const struct request *r)
{
	char line[400];
	size_t n = strnlen(r->args, sizeof(line) - 1);

	for (size_t i = 0; i < n; i++)
		line[i] = r->args[i] == '\n' ? ' ' : r->args[i];
	line[n] = 0;
	log_client(c->uid, LOG_NOTE,
		"request %" PRIu64
		" of uid %u (pid %d) for %u sessions of run %s on stream %s: %s %s",
		r->number, (unsigned)c->uid, (int)c->pid, r->participants, r->run,
		r->stream->config->name, r->kind, line);
}

/* Replies to the operator; with a cursor of the run, for the mix before the request. */
static void reply(struct connection *c, const struct request *r)
{
	struct wire out = {.op = WIRE_ASKED};
	char *bytes = malloc(LIMIT_CURSOR_BYTES);
	uint32_t id = 0;

	while (!request_concerns(c->control->sessions.of[id], r->stream, r->run))
		id++; /* it has participants */
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_SESSIONS, r->participants);
	wire_set_text(&out, WIRE_RUN, r->run);
	if (bytes)
		wire_set_bytes(&out, WIRE_CURSOR, bytes,
			cursor_encode(feed_cursor(c->control->sessions.of[id]->feed), bytes,
				LIMIT_CURSOR_BYTES));
	connection_send(c, r->serial, &out);
	free(bytes);
}

void request_new(struct connection *c, const struct wire *w)
{
	struct request *r = calloc(1, sizeof(*r));
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct fault fault;

	fault_set(&fault, FAULT_MEMORY, "request", "out of memory");
	if (!r || !read_request(c, r, w, &fault)) {
		counts_request(&c->control->counts, r ? r->kind : "", COUNTS_REFUSED);
		if (r)
			request_free(r);
		log_client(c->uid, LOG_WARNING, "request of uid %u (pid %d) refused: %s: %s",
			(unsigned)c->uid, (int)c->pid, fault.field, fault.text);
		connection_error(c, serial, &fault);
		return;
	}
	r->serial = serial;
	request_begin(c, r);
	log_request(c, r);
	reply(c, r);
}
