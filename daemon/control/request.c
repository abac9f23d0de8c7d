/*
 * A request is an operator's change of a running job. The run's sessions at this daemon see the
 * request's number in their rings, and fetch its text. The daemon does not interpret it: it knows
 * the participants, and passes their answers to the operator. A participant is a rank and peer of
 * the run; its ring and connection may change meanwhile, because a request may need a seek.
 *
 * A request ends when every participant has answered or is gone. It can be cancelled as long as no
 * session has fetched it. A run has one request at a time. All on the loop.
 */
#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* ---- participants ---- */

/* The open request to this run. */
static struct request *find(
	const struct requests *all, const struct stream *stream, const char *run)
{
	struct request *r;

	LIST_FOREACH(r, &all->open, others)
	if (r->stream == stream && strcmp(r->run, run) == 0)
		return r;
	return NULL;
}

static bool participant_waits(const struct participant *p)
{
	return p->outcome == 0 || p->outcome == WIRE_NOTED;
}

/* The number of participants with this outcome; 0: that have not answered. */
static unsigned with(const struct request *r, enum wire_outcome outcome)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->participants; i++)
		n += outcome == 0 ? participant_waits(&r->participant[i])
				  : r->participant[i].outcome == outcome;
	return n;
}

/* The request that this session has not answered yet. */
static struct request *open_request(const struct session *s)
{
	const struct participant *p = s->participant;

	return p && participant_waits(p) ? p->request : NULL;
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

/* Makes @s a participant. If its rank and peer are one and have answered, their answer stays. */
static void join(struct request *r, struct session *s)
{
	struct participant *p = r->participant, *end = p + r->participants;

	while (p < end && (p->rank != s->rank || p->peer != s->peer))
		p++;
	if (p == end && r->participants == LIMIT_SESSIONS)
		return; /* more than ever were attached: it does not see the request */
	if (p == end) {
		*p = (struct participant){.request = r, .rank = s->rank, .peer = s->peer};
		r->participants++;
	}
	if (p->outcome == WIRE_GONE)
		p->outcome = 0; /* it has attached again */
	s->participant = p;
	show(s);
}

void request_join(struct session *s)
{
	struct request *r = s->helper ? NULL : find(&s->control->requests, s->stream, s->run);

	if (r)
		join(r, s);
	else
		show(s);
}

/* ---- the end of one ---- */

static void request_end(struct control *control, struct request *r, enum counts_outcome outcome)
{
	counts_request(&control->counts, r->kind, outcome);
	LIST_REMOVE(r, others);
	if (r->asker)
		r->asker->request = NULL;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct session *s = control->sessions.of[id]; /* also one that is closing */

		if (s && s->participant && s->participant->request == r) {
			s->participant = NULL;
			show(s);
		}
	}
	free(r);
}

/* Unless a session has fetched it. */
static void cancel(struct connection *c, struct request *r, const char *why)
{
	if (r->fetched)
		return;
	log_client(c->uid, LOG_NOTE, "request %" PRIu64 ": cancelled%s", r->number, why);
	request_end(c->control, r, COUNTS_CANCELLED);
}

void requests_free(struct requests *requests)
{
	for (struct request *r; (r = LIST_FIRST(&requests->open));) {
		LIST_REMOVE(r, others);
		free(r);
	}
}

/* ---- answers ---- */

/* Passes the answer of @p to the operator: message @w of its session @s, which is empty if it is
 * gone. Ends the request after the last answer. */
static void pass_on(const struct session *s, const struct participant *p, const struct wire *w)
{
	static const char *const outcomes[] = {
		"", "noted", "done", "failed", "ended without an answer"};
	struct request *r = p->request;
	struct connection *asker = r->asker;
	struct wire_bytes text = wire_bytes(w, WIRE_TEXT), cursor = wire_bytes(w, WIRE_CURSOR);
	struct wire out = *w;
	unsigned left = with(r, 0);

	log_client(asker ? asker->uid : 0, LOG_NOTE,
		"request %" PRIu64 ": rank %" PRIu64 " of run %s: %s%s%.*s", r->number, p->rank,
		r->run, outcomes[p->outcome], text.n ? ": " : "", (int)text.n, text.at);
	out.op = WIRE_ANSWER;
	out.has &= WIRE_BIT(WIRE_FROM) | WIRE_BIT(WIRE_ACTS_FROM);
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_OUTCOME, p->outcome);
	wire_set(&out, WIRE_WAITING, left);
	wire_set(&out, WIRE_RANK, p->rank);
	wire_set(&out, WIRE_WORLD, s->world);
	wire_set(&out, WIRE_MICRO, s->micro_batch);
	wire_set(&out, WIRE_PEER, p->peer);
	wire_set(&out, WIRE_PID, (uint64_t)s->connection->pid);
	wire_set_text(&out, WIRE_RUN, r->run);
	wire_set_text(&out, WIRE_HOST, s->connection->host);
	wire_set_bytes(&out, WIRE_TEXT, text.at, text.n);
	if (p->outcome == WIRE_DONE && wire_has(w, WIRE_CURSOR)) {
		uint64_t hash = order_name_hash(cursor.at, cursor.n);

		if (!r->has_cursor) {
			wire_set_bytes(&out, WIRE_CURSOR, cursor.at, cursor.n);
			r->cursor = hash;
		}
		r->has_cursor = true;
		wire_set(&out, WIRE_SAME, hash == r->cursor);
	}
	if (left == 0 && asker) {
		r->asker = NULL;
		asker->request = NULL;
	}
	/* This may close the asker, which ends a request that nobody has fetched. */
	if (asker)
		connection_send(asker, r->serial, &out);
	if (left == 0)
		request_end(s->control, r,
			with(r, WIRE_DONE) > 0 && with(r, WIRE_FAILED) == 0 ? COUNTS_DONE
									    : COUNTS_FAILED);
}

void request_answer(struct connection *c, const struct wire *w)
{
	struct session *s = c->session;
	uint64_t number = wire_number(w, WIRE_NUMBER), outcome = wire_number(w, WIRE_OUTCOME);
	char text[LIMIT_TEXT_BYTES + 1];
	struct fault fault;

	if (outcome < WIRE_NOTED || outcome > WIRE_FAILED ||
		!wire_text(w, WIRE_TEXT, text, sizeof(text)) ||
		wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES) {
		fault_set(&fault, FAULT_REQUEST, "answer",
			"the outcome is out of range, or the text or the cursor is too long");
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
	} else if (request_number(s) != number || number == 0) {
		/* A request of the previous daemon, or one that was cancelled. */
		log_client(c->uid, LOG_NOTE,
			"request %" PRIu64 ": answer of rank %" PRIu64
			" of run %s ignored: no such request is open",
			number, s->rank, s->run);
	} else if (outcome != s->participant->outcome) { /* otherwise it is reported twice */
		s->participant->outcome = (enum wire_outcome)outcome;
		show(s);
		pass_on(s, s->participant, w);
	}
}

void request_leave(struct session *s)
{
	const struct request *r = open_request(s);
	struct participant *p = s->participant;
	const struct session *other;

	s->participant = NULL;
	if (!r)
		return;
	for (SESSIONS(other, s->control, r->stream, r->run))
		if (other->participant == p)
			return; /* it has another ring */
	p->outcome = WIRE_GONE;
	pass_on(s, p, &(struct wire){0});
}

void request_abandon(struct connection *c)
{
	struct request *r = c->request;

	if (!r)
		return;
	c->request = NULL;
	r->asker = NULL;
	cancel(c, r, ": its operator has left");
}

/* ---- queries of sessions and operators ---- */

void request_pending(struct connection *c, const struct wire *query)
{
	struct wire w = {.op = WIRE_REQUEST};
	struct request *r = open_request(c->session);

	wire_set(&w, WIRE_NUMBER, r ? r->number : 0);
	wire_set_text(&w, WIRE_KIND, r ? r->kind : "");
	wire_set_text(&w, WIRE_ARGS, r ? r->args : "");
	if (r)
		r->fetched = true;
	connection_send(c, wire_number(query, WIRE_SERIAL), &w);
}

void request_describe(struct connection *c, const struct wire *query)
{
	struct wire w = {.op = WIRE_DESCRIBED};
	char cursor[LIMIT_CURSOR_BYTES];

	wire_set_bytes(&w, WIRE_CURSOR, cursor,
		cursor_encode(&c->session->stream->begin, cursor, sizeof(cursor)));
	connection_send(c, wire_number(query, WIRE_SERIAL), &w);
}

void request_cancel(struct connection *c, const struct wire *w)
{
	struct wire out = {.op = WIRE_CANCELLED};
	struct request *r = c->request;
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct fault fault;

	if (!r || r->number != wire_number(w, WIRE_NUMBER)) {
		fault_set(&fault, FAULT_REQUEST, "number",
			"no such request of this connection is open");
		connection_error(c, serial, &fault);
		return;
	}
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_FETCHED, r->fetched);
	cancel(c, r, "");
	connection_send(c, serial, &out);
}

/* ---- a new one ---- */

/* Takes the run that @w names, or the only one that the operator may change. */
static bool find_run(
	const struct connection *c, struct request *r, const struct wire *w, struct fault *fault)
{
	const char *stream = r->stream->config->name;
	const struct session *s;
	bool named = wire_has(w, WIRE_RUN), any = false, found = false, several = false;

	if (named && (!wire_text(w, WIRE_RUN, r->run, sizeof(r->run)) || !wire_name_ok(r->run)))
		return fault_set(fault, FAULT_REQUEST, "run", "must be " PHRASE_NAME);
	if (named && !runs_name(c->control->config, c->uid, r->run, fault)) {
		fault->code = FAULT_REQUEST;
		return false;
	}
	for (SESSIONS(s, c->control, r->stream, NULL)) {
		bool same = strcmp(r->run, s->run) == 0;

		if (s->helper)
			continue;
		any = true;
		found |= same;
		if (named || !runs_may(c->control->config, c->uid, s->run))
			continue;
		several |= r->run[0] && !same;
		memcpy(r->run, s->run, sizeof(r->run));
	}
	if (!any)
		return fault_set(fault, FAULT_REQUEST, "stream",
			"no session is attached on stream %s at this daemon", stream);
	if (named && !found)
		return fault_set(fault, FAULT_REQUEST, "run",
			"run %s is not attached on stream %s; tokctl status lists those that are",
			r->run, stream);
	if (!r->run[0])
		return fault_set(fault, FAULT_REQUEST, "run",
			"only runs of other users are attached on stream %s; their owners, root "
			"and admin_uids may change them, not uid %u",
			stream, (unsigned)c->uid);
	return !several || fault_set(fault, FAULT_REQUEST, "run",
				   "several runs are attached on stream %s; name one of those that "
				   "tokctl status lists",
				   stream);
}

/* A run and an operator's connection have one request at a time. */
static bool find_room(const struct connection *c, const struct request *r, struct fault *fault)
{
	const struct request *other = find(&c->control->requests, r->stream, r->run);
	const struct session *s;

	if (c->request)
		return fault_set(fault, FAULT_REQUEST, "connection",
			"already waits for another request; open another connection");
	if (!other)
		return true;
	for (SESSIONS(s, c->control, r->stream, r->run))
		if (open_request(s) == other)
			break;
	assert(s); /* otherwise it would have ended */
	return fault_set(fault, FAULT_REQUEST, "run",
		"run %s has had an open request for %" PRIu64 " s: %s, number %" PRIu64
		"; rank %" PRIu64 " (pid %d on %s) has not answered",
		r->run, (connection_now(c) - other->since_ms) / 1000, other->kind, other->number,
		s->rank, (int)s->connection->pid,
		s->connection->host[0] ? s->connection->host : "?");
}

static bool read_request(
	const struct connection *c, struct request *r, const struct wire *w, struct fault *fault)
{
	r->stream = connection_stream(c, w, FAULT_REQUEST, fault);
	if (!r->stream)
		return false;
	if (!wire_text(w, WIRE_KIND, r->kind, sizeof(r->kind)) || !wire_name_ok(r->kind))
		return fault_set(fault, FAULT_REQUEST, "kind", "must be a name of 1 to %zu bytes",
			sizeof(r->kind) - 1);
	if (!wire_text(w, WIRE_ARGS, r->args, sizeof(r->args)))
		return fault_set(fault, FAULT_REQUEST, "args",
			"%u bytes; must be fewer than %d, and none is 0",
			wire_bytes(w, WIRE_ARGS).n, WIRE_ARGS_BYTES);
	return find_run(c, r, w, fault) && find_room(c, r, fault);
}

/* Numbers it, shows it to the sessions of its run, which become participants, and replies. */
static void request_begin(struct connection *asker, struct request *r, uint64_t serial)
{
	struct control *control = asker->control;
	struct wire out = {.op = WIRE_ASKED};
	char line[400];
	struct session *s;

	r->number = ++control->requests.last;
	r->since_ms = connection_now(asker);
	r->asker = asker;
	r->serial = serial;
	asker->request = r;
	LIST_INSERT_HEAD(&control->requests.open, r, others);
	for (SESSIONS(s, control, r->stream, r->run))
		if (!s->helper)
			join(r, s);
	snprintf(line, sizeof(line), "%.*s", (int)sizeof(line) - 1, r->args);
	for (char *end = line; (end = strchr(end, '\n'));)
		*end = ' ';
	log_client(asker->uid, LOG_NOTE,
		"request %" PRIu64
		" of uid %u (pid %d) for %u sessions of run %s on stream %s: %s %s",
		r->number, (unsigned)asker->uid, (int)asker->pid, r->participants, r->run,
		r->stream->config->name, r->kind, line);
	wire_set(&out, WIRE_NUMBER, r->number);
	wire_set(&out, WIRE_SESSIONS, r->participants);
	wire_set_text(&out, WIRE_RUN, r->run);
	connection_send(asker, serial, &out);
}

void request_new(struct connection *c, const struct wire *w)
{
	struct request *r = calloc(1, sizeof(*r));
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct fault fault;

	fault_set(&fault, FAULT_MEMORY, "request", "out of memory");
	if (r && read_request(c, r, w, &fault)) {
		request_begin(c, r, serial);
		return;
	}
	counts_request(&c->control->counts, r ? r->kind : "", COUNTS_REFUSED);
	free(r);
	log_client(c->uid, LOG_WARNING, "request of uid %u (pid %d) refused: %s: %s",
		(unsigned)c->uid, (int)c->pid, fault.field, fault.text);
	connection_error(c, serial, &fault);
}

/* Numbers differ between daemons, after one another and on different nodes. They are below 2^63
 * whatever the wall clock says, because a job's processes exchange them as signed integers. */
void requests_init(struct requests *requests)
{
	uint32_t chance = 0;

	if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) < 0)
		chance = (uint32_t)getpid();
	requests->last = (uint64_t)(uint32_t)time(NULL) << 31 | chance >> 2;
}
