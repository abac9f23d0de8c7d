/*
 * Requests: an operator's word to the sessions of one run, which see its number in their rings and
 * fetch the rest. The daemon carries nothing out and reads no arguments; it knows who is to answer
 * and passes answers on. What it expects an answer from is a *party*: a rank and peer of the run,
 * whatever ring and connection it has by now, for carrying a request out may mean to seek.
 *
 * A request lives until every party has answered or is gone, or until it is taken back, which only
 * goes as long as nobody has fetched it. One a run at a time.
 */
#include "daemon/control/log.h"
#include "daemon/control/server.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_NAMED = 8 }; /* in one line */

struct party {
	uint64_t rank, world, micro_batch, peer;
	pid_t pid;
	char host[LIMIT_NAME_BYTES + 1];
	enum wire_outcome outcome; /* 0: not seen it yet */
};

struct request {
	struct request *next;
	uint64_t number, since_ms;
	const struct stream *stream;
	char run[LIMIT_NAME_BYTES + 1];
	char kind[16];
	char *args;
	struct connection *asker; /* who waits for the answers; NULL: left */
	bool fetched, differed;
	void *cursor; /* of the first WIRE_DONE */
	size_t cursor_bytes;
	unsigned parties;
	struct party *party;
};

/* ---- parties ---- */

static bool waits(const struct party *p)
{
	return p->outcome == 0 || p->outcome == WIRE_NOTED;
}

static unsigned waiting(const struct request *r)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->parties; i++)
		n += waits(&r->party[i]);
	return n;
}

static bool of_run(const struct session *s, const struct stream *stream, const char *run)
{
	return s && s->fed && !s->helper && !s->connection->closing && s->stream == stream &&
	       strcmp(s->run, run) == 0;
}

static bool is_party(const struct session *s, const struct party *p)
{
	return s->rank == p->rank && s->peer == p->peer;
}

static struct request *request_of(const struct session *s)
{
	struct request *r = s->connection->server->requests;

	while (r && !of_run(s, r->stream, r->run))
		r = r->next;
	return r;
}

static struct party *party_of(const struct request *r, const struct session *s)
{
	for (unsigned i = 0; i < r->parties; i++)
		if (is_party(s, &r->party[i]))
			return &r->party[i];
	return NULL;
}

/* The request that this session has not answered yet. */
static struct request *open_request(const struct session *s)
{
	struct request *r = request_of(s);
	const struct party *p = r ? party_of(r, s) : NULL;

	return p && waits(p) ? r : NULL;
}

uint64_t request_number(const struct session *s)
{
	const struct request *r = open_request(s);

	return r ? r->number : 0;
}

static void show(struct session *s)
{
	atomic_store_explicit(
		&s->memory.ring.header->request, request_number(s), memory_order_release);
}

/* To all sessions of a run, whatever has become of its request. */
static void show_all(struct server *server, const struct stream *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (of_run(server->session[id], stream, run))
			show(server->session[id]);
}

/* A place for @s among those who are to answer; who has answered keeps that. */
static bool add_party(struct request *r, const struct session *s)
{
	struct party *p = party_of(r, s);

	if (!p) {
		struct party *list = r->parties < LIMIT_SESSIONS
					     ? realloc(r->party, (r->parties + 1) * sizeof(*list))
					     : NULL;

		if (!list)
			return false;
		r->party = list;
		p = &list[r->parties++];
		*p = (struct party){.rank = s->rank, .peer = s->peer};
	}
	if (p->outcome == WIRE_GONE)
		p->outcome = 0; /* it has come back */
	p->world = s->world;
	p->micro_batch = s->micro_batch;
	p->pid = s->connection->pid;
	memcpy(p->host, s->connection->host, sizeof(p->host));
	return true;
}

/* ---- the end of one ---- */

static void request_free(struct request *r)
{
	free(r->args);
	free(r->cursor);
	free(r->party);
	free(r);
}

static void request_end(struct server *server, struct request *r)
{
	struct request **at = &server->requests;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (r->asker)
		r->asker->request = NULL;
	show_all(server, r->stream, r->run);
	request_free(r);
}

void requests_free(struct server *server)
{
	for (struct request *r = server->requests, *next; r; r = next) {
		next = r->next;
		request_free(r);
	}
	server->requests = NULL;
}

/* ---- answers ---- */

static const char *outcome_name(enum wire_outcome outcome)
{
	static const char *const names[] = {
		"", "has seen it", "done", "failed", "ended without an answer"};

	return names[outcome];
}

/* Does the operator get this cursor? *@same: it has the bytes of the first. */
static bool compare_cursor(struct request *r, struct wire_bytes cursor, bool *same)
{
	if (!r->cursor) {
		*same = true;
		r->cursor = malloc(cursor.n ? cursor.n : 1);
		if (r->cursor)
			memcpy(r->cursor, cursor.at, cursor.n);
		r->cursor_bytes = cursor.n;
		return true;
	}
	*same = cursor.n == r->cursor_bytes && memcmp(cursor.at, r->cursor, cursor.n) == 0;

	bool first = !*same && !r->differed;

	r->differed |= !*same;
	return first;
}

/* Who to hold to account for lines in the log. */
static uid_t uid_of(const struct request *r)
{
	return r->asker ? r->asker->uid : 0;
}

/* Passes on what @p said in @w, or, if that is NULL, that it is gone; ends the request after the
 * last. */
static void pass_on(
	struct server *server, struct request *r, const struct party *p, const struct wire *w)
{
	struct wire out = {.op = WIRE_ANSWER};
	unsigned left = waiting(r);
	struct wire_bytes text = w ? wire_bytes(w, WIRE_TEXT) : (struct wire_bytes){"", 0};
	bool same;

	log_client(uid_of(r), LOG_NOTE, "request %" PRIu64 ": rank %" PRIu64 " of run %s: %s%s%.*s",
		r->number, p->rank, r->run, outcome_name(p->outcome), text.n ? ": " : "",
		(int)text.n, text.at);
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_OUTCOME, p->outcome);
	wire_set(&out, WIRE_WAITING, left);
	wire_set(&out, WIRE_RANK, p->rank);
	wire_set(&out, WIRE_WORLD, p->world);
	wire_set(&out, WIRE_MICRO, p->micro_batch);
	wire_set(&out, WIRE_PEER, p->peer);
	wire_set(&out, WIRE_PID, (uint64_t)p->pid);
	wire_set_text(&out, WIRE_RUN, r->run);
	wire_set_text(&out, WIRE_HOST, p->host);
	wire_set_bytes(&out, WIRE_TEXT, text.at, text.n);
	if (w && p->outcome == WIRE_DONE && wire_has(w, WIRE_CURSOR)) {
		struct wire_bytes cursor = wire_bytes(w, WIRE_CURSOR);

		if (compare_cursor(r, cursor, &same))
			wire_set_bytes(&out, WIRE_CURSOR, cursor.at, cursor.n);
		wire_set(&out, WIRE_SAME, same);
	}
	if (w && wire_has(w, WIRE_FROM) && wire_has(w, WIRE_ACTS_FROM)) {
		wire_set(&out, WIRE_FROM, wire_number(w, WIRE_FROM));
		wire_set(&out, WIRE_ACTS_FROM, wire_number(w, WIRE_ACTS_FROM));
	}
	struct connection *asker = r->asker;

	if (left == 0 && asker) {
		r->asker = NULL;
		asker->request = NULL;
	}
	/* It may be closed by this, and then a request that nobody has fetched is no more. */
	if (asker)
		connection_send(asker, &out, NULL, 0);
	if (left == 0)
		request_end(server, r);
}

void request_answer(struct connection *c, const struct wire *w)
{
	struct session *s = c->session;
	uint64_t number = wire_number(w, WIRE_NUMBER), outcome = wire_number(w, WIRE_OUTCOME);
	struct request *r = s && s->fed ? open_request(s) : NULL;
	char text[LIMIT_TEXT_BYTES + 1];

	if (!s || !s->fed) {
		connection_refuse(c, "request", "connection", "attach first");
		return;
	}
	if (outcome < WIRE_NOTED || outcome > WIRE_FAILED ||
		!wire_text(w, WIRE_TEXT, text, sizeof(text)) ||
		wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES) {
		connection_refuse(
			c, "request", "answer", "not an outcome, or longer than one may be");
		return;
	}
	if (!r || r->number != number) {
		/* Of a daemon before this one, or taken back. */
		log_client(c->uid, LOG_NOTE,
			"request %" PRIu64 ": rank %" PRIu64
			" of run %s answers, but it is not open here",
			number, s->rank, s->run);
		return;
	}

	struct party *p = party_of(r, s);

	if (outcome == p->outcome)
		return; /* noted twice */
	p->outcome = (enum wire_outcome)outcome;
	show(s);
	pass_on(c->server, r, p, w);
}

/* ---- sessions come and go ---- */

void request_join(struct session *s)
{
	struct request *r = request_of(s);

	if (r && !add_party(r, s))
		log_client(s->connection->uid, LOG_WARNING,
			"request %" PRIu64 ": no room for rank %" PRIu64
			" of run %s, which is not asked",
			r->number, s->rank, s->run);
	show(s);
}

void request_leave(struct session *s)
{
	struct server *server = s->connection->server;
	struct request *r = s->helper ? NULL : server->requests;
	struct party *p;

	while (r && (r->stream != s->stream || strcmp(r->run, s->run) != 0))
		r = r->next;
	p = r ? party_of(r, s) : NULL;
	if (!p || !waits(p))
		return;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (server->session[id] != s && of_run(server->session[id], r->stream, r->run) &&
			is_party(server->session[id], p))
			return; /* it has only gone to another ring */
	p->outcome = WIRE_GONE;
	pass_on(server, r, p, NULL);
}

void request_abandon(struct connection *c)
{
	struct request *r = c->request;

	if (!r)
		return;
	c->request = NULL;
	r->asker = NULL;
	if (r->fetched)
		return;
	log_client(c->uid, LOG_NOTE, "request %" PRIu64 ": its operator left, it is taken back",
		r->number);
	request_end(c->server, r);
}

/* ---- what sessions and operators ask ---- */

void request_pending(struct connection *c)
{
	struct wire w = {.op = WIRE_REQUEST};
	struct request *r;

	if (!c->session || !c->session->fed) {
		connection_refuse(c, "request", "connection", "attach first");
		return;
	}
	r = open_request(c->session);
	wire_set(&w, WIRE_NUMBER, r ? r->number : 0);
	wire_set_text(&w, WIRE_KIND, r ? r->kind : "");
	wire_set_text(&w, WIRE_ARGS, r ? r->args : "");
	if (r)
		r->fetched = true;
	connection_send(c, &w, NULL, 0);
}

void request_describe(struct connection *c)
{
	struct wire w = {.op = WIRE_DESCRIBED};

	if (!c->session || !c->session->fed) {
		connection_refuse(c, "request", "connection", "attach first");
		return;
	}
	wire_set_bytes(
		&w, WIRE_CURSOR, c->session->stream->begin_bytes, c->session->stream->begin_length);
	connection_send(c, &w, NULL, 0);
}

void request_cancel(struct connection *c, const struct wire *w)
{
	struct wire out = {.op = WIRE_CANCELLED};
	struct request *r = c->request;

	if (!r || r->number != wire_number(w, WIRE_NUMBER)) {
		connection_error(
			c, "request", "number", "that request is over, or not of this connection");
		return;
	}
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_FETCHED, r->fetched);
	if (!r->fetched) {
		log_client(c->uid, LOG_NOTE, "request %" PRIu64 ": taken back", r->number);
		request_end(c->server, r);
	}
	connection_send(c, &out, NULL, 0);
}

/* ---- a new one ---- */

/* Names of the runs attached on @stream that @c may change, with commas; how many there are. */
static unsigned name_runs(
	const struct connection *c, const struct stream *stream, char *to, size_t room)
{
	const struct server *server = c->server;
	const char *seen[RUNS_NAMED + 1];
	unsigned n = 0;
	size_t length = 0;

	to[0] = 0;
	for (uint32_t id = 0; id < LIMIT_SESSIONS && n <= RUNS_NAMED; id++) {
		const struct session *s = server->session[id];
		unsigned i = 0;

		if (!s || !of_run(s, stream, s->run) || !runs_may_change(c, stream, s->run))
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

static bool is_attached(const struct server *server, const struct stream *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (server->session[id] &&
			of_run(server->session[id], stream, run ? run : server->session[id]->run))
			return true;
	return false;
}

/* Whom it is for: the run named in @w, */
static bool find_named(const struct connection *c, struct request *r, const struct wire *w,
	const char *runs, struct refusal *why)
{
	const char *stream = r->stream->config->name;

	if (!wire_text(w, WIRE_RUN, r->run, sizeof(r->run)) || !wire_name_ok(r->run))
		return refuse(why, "request", "run", "not a name");
	runs_rename(c, r->stream, r->run);
	if (!is_attached(c->server, r->stream, r->run))
		return refuse(why, "request", "run",
			"no session of run %s is attached on stream %s, only of %s", r->run, stream,
			runs[0] ? runs : "runs of other users");
	if (!runs_may_change(c, r->stream, r->run))
		return refuse(why, "request", "run",
			"run %s belongs to someone else: only its owner, root and admin_uids may "
			"change it, "
			"not "
			"uid %u",
			r->run, (unsigned)c->uid);
	return true;
}

/* or the only one that the operator may change. */
static bool find_run(
	const struct connection *c, struct request *r, const struct wire *w, struct refusal *why)
{
	char runs[(RUNS_NAMED + 1) * (LIMIT_NAME_BYTES + 2)];
	unsigned n = name_runs(c, r->stream, runs, sizeof(runs));
	const char *stream = r->stream->config->name;

	if (!is_attached(c->server, r->stream, NULL))
		return refuse(why, "request", "stream", "no session of stream %s is attached here",
			stream);
	if (wire_has(w, WIRE_RUN))
		return find_named(c, r, w, runs, why);
	if (n == 0)
		return refuse(why, "request", "run",
			"only runs of other users are attached on stream %s: their owners, root "
			"and "
			"admin_uids "
			"may change them, not uid %u",
			stream, (unsigned)c->uid);
	if (n > 1)
		return refuse(why, "request", "run",
			"several runs are attached on stream %s: name one of %s", stream, runs);
	memcpy(r->run, runs, strlen(runs) + 1);
	return true;
}

/* One a run at a time. */
static bool find_room(struct connection *c, const struct request *r, struct refusal *why)
{
	uint64_t now = uv_now(&c->server->loop);

	for (const struct request *other = c->server->requests; other; other = other->next) {
		if (other->stream != r->stream || strcmp(other->run, r->run) != 0)
			continue;

		const struct party *p = other->party;

		while (!waits(p)) /* one does, or the request were over */
			p++;
		return refuse(why, "request", "run",
			"run %s has an open request: %s, number %" PRIu64 ", for %" PRIu64
			" s; rank %" PRIu64 " (pid %d on %s) has not answered it%s",
			r->run, other->kind, other->number, (now - other->since_ms) / 1000, p->rank,
			(int)p->pid, p->host[0] ? p->host : "?",
			waiting(other) > 1 ? ", nor have others" : "");
	}
	if (c->request)
		return refuse(why, "request", "connection", "it waits for another request already");
	return true;
}

static bool read_request(
	struct connection *c, struct request *r, const struct wire *w, struct refusal *why)
{
	char name[LIMIT_NAME_BYTES + 1];
	struct wire_bytes args = wire_bytes(w, WIRE_ARGS);

	if (!wire_text(w, WIRE_STREAM, name, sizeof(name)) || !wire_name_ok(name))
		return refuse(why, "request", "stream", "not a name");
	r->stream = catalog_stream(c->server->options->catalog, name);
	if (!r->stream)
		return refuse(why, "request", "stream", "%s is not in %s", name,
			c->server->options->catalog->config->path);
	if (!wire_text(w, WIRE_KIND, r->kind, sizeof(r->kind)) || !wire_name_ok(r->kind))
		return refuse(why, "request", "kind", "not a name of at most %zu bytes",
			sizeof(r->kind) - 1);
	if (args.n >= WIRE_ARGS_BYTES)
		return refuse(why, "request", "args", "%u bytes, must be fewer than %d", args.n,
			WIRE_ARGS_BYTES);
	r->args = malloc(args.n + 1);
	if (!r->args)
		return refuse(why, "memory", "args", "out of memory");
	if (!wire_text(w, WIRE_ARGS, r->args, args.n + 1))
		return refuse(why, "request", "args", "a 0 byte in it");
	return find_run(c, r, w, why) && find_room(c, r, why);
}

/* Everybody who is there. */
static bool invite(struct server *server, struct request *r, struct refusal *why)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (of_run(server->session[id], r->stream, r->run) &&
			!add_party(r, server->session[id]))
			return refuse(why, "memory", "sessions", "out of memory");
	return true;
}

/* The lines of its arguments as one. */
static void log_request(const struct connection *c, const struct request *r)
{
	char line[400];
	size_t n = strnlen(r->args, sizeof(line) - 1);

	for (size_t i = 0; i < n; i++)
		line[i] = r->args[i] == '\n' ? ' ' : r->args[i];
	line[n] = 0;
	log_client(c->uid, LOG_NOTE,
		"request %" PRIu64
		" of uid %u (pid %d) to %u sessions of run %s on stream %s: %s %s",
		r->number, (unsigned)c->uid, (int)c->pid, r->parties, r->run,
		r->stream->config->name, r->kind, line);
}

void request_new(struct connection *c, const struct wire *w)
{
	struct server *server = c->server;
	struct request *r = calloc(1, sizeof(*r));
	struct refusal why = {.code = "memory", .field = "request", .text = "out of memory"};
	struct wire out = {.op = WIRE_ASKED};

	if (!r || !read_request(c, r, w, &why) || !invite(server, r, &why)) {
		if (r)
			request_free(r);
		log_client(c->uid, LOG_WARNING, "request of uid %u (pid %d) refused: %s: %s",
			(unsigned)c->uid, (int)c->pid, why.field, why.text);
		connection_error(c, why.code, why.field, why.text);
		return;
	}
	r->number = ++server->asked;
	r->since_ms = uv_now(&server->loop);
	r->asker = c;
	c->request = r;
	r->next = server->requests;
	server->requests = r;
	show_all(server, r->stream, r->run);
	log_request(c, r);
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_SESSIONS, r->parties);
	wire_set_text(&out, WIRE_RUN, r->run);
	connection_send(c, &out, NULL, 0);
}
