#include "daemon/control/request.h"

#include "daemon/control/control.h"
#include "daemon/control/log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* ---- participants ---- */

bool participant_waits(const struct participant *p)
{
	return p->outcome == 0 || p->outcome == WIRE_NOTED;
}

unsigned request_waiting(const struct request *r)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->participants; i++)
		n += participant_waits(&r->participant[i]);
	return n;
}

bool request_concerns(const struct session *s, const struct stream *stream, const char *run)
{
	return session_is_live(s) && !s->helper && s->stream->slot == stream->slot &&
	       strcmp(s->run, run) == 0;
}

static bool is_participant(const struct session *s, const struct participant *p)
{
	return s->rank == p->rank && s->peer == p->peer;
}

static struct request *request_of(const struct session *s)
{
	struct request *r = s->control->requests.first;

	while (r && !request_concerns(s, r->stream, r->run))
		r = r->next;
	return r;
}

static struct participant *participant_of(const struct request *r, const struct session *s)
{
	for (unsigned i = 0; i < r->participants; i++)
		if (is_participant(s, &r->participant[i]))
			return &r->participant[i];
	return NULL;
}

/* The request that this session has not answered yet. */
static struct request *open_request(const struct session *s)
{
	struct request *r = request_of(s);
	const struct participant *p = r ? participant_of(r, s) : NULL;

	return p && participant_waits(p) ? r : NULL;
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

/* Updates the request's number in all rings of a run, also when the request has ended. */
static void show_all(struct control *control, const struct stream *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (request_concerns(control->sessions.of[id], stream, run))
			show(control->sessions.of[id]);
}

/* Makes @s a participant. If it is one and has answered, its answer stays. False: out of memory. */
static bool add_participant(struct request *r, const struct session *s)
{
	struct participant *p = participant_of(r, s);

	if (!p) {
		struct participant *list =
			r->participants < LIMIT_SESSIONS
				? realloc(r->participant, (r->participants + 1) * sizeof(*list))
				: NULL;

		if (!list)
			return false;
		r->participant = list;
		p = &list[r->participants++];
		*p = (struct participant){.rank = s->rank, .peer = s->peer};
	}
	if (p->outcome == WIRE_GONE)
		p->outcome = 0; /* it has attached again */
	p->world = s->world;
	p->micro_batch = s->micro_batch;
	p->pid = s->connection->pid;
	memcpy(p->host, s->connection->host, sizeof(p->host));
	return true;
}

/* ---- the end of one ---- */

void request_free(struct request *r)
{
	free(r->args);
	free(r->cursor);
	free(r->participant);
	generation_drop(r->generation);
	free(r);
}

static void request_end(struct control *control, struct request *r)
{
	struct request **at = &control->requests.first;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (r->asker)
		r->asker->request = NULL;
	show_all(control, r->stream, r->run);
	request_free(r);
}

static void take_back(struct control *control, struct request *r)
{
	counts_request(&control->counts, r->kind, COUNTS_TAKEN_BACK);
	request_end(control, r);
}

void requests_free(struct requests *requests)
{
	for (struct request *r = requests->first, *next; r; r = next) {
		next = r->next;
		request_free(r);
	}
	requests->first = NULL;
}

/* ---- answers ---- */

static const char *outcome_name(enum wire_outcome outcome)
{
	static const char *const names[] = {
		"", "seen", "done", "failed", "ended without an answer"};

	return names[outcome];
}

/* Should the operator get this cursor? Only the first one, and the first that differs from it.
 * *@same: it equals the first. */
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

/* The user whose log lines these are. */
static uid_t uid_of(const struct request *r)
{
	return r->asker ? r->asker->uid : 0;
}

/* Counts a request to which all participants have answered, or are gone. */
static void count(struct control *control, const struct request *r)
{
	unsigned done = 0, failed = 0;

	for (unsigned i = 0; i < r->participants; i++) {
		done += r->participant[i].outcome == WIRE_DONE;
		failed += r->participant[i].outcome == WIRE_FAILED;
	}
	counts_request(
		&control->counts, r->kind, done > 0 && failed == 0 ? COUNTS_DONE : COUNTS_FAILED);
}

/* Passes the answer of @p to the operator: message @w, or NULL: @p is gone. Ends the request after
 * the last answer. */
static void pass_on(struct control *control, struct request *r, const struct participant *p,
	const struct wire *w)
{
	struct wire out = {.op = WIRE_ANSWER};
	unsigned left = request_waiting(r);
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
	/* This may close the asker, which ends a request that nobody has fetched. */
	if (asker)
		connection_send(asker, r->serial, &out);
	if (left == 0) {
		count(control, r);
		request_end(control, r);
	}
}

void request_answer(struct connection *c, const struct wire *w)
{
	struct session *s = c->session;
	uint64_t number = wire_number(w, WIRE_NUMBER), outcome = wire_number(w, WIRE_OUTCOME);
	struct request *r = open_request(s);
	char text[LIMIT_TEXT_BYTES + 1];
	struct fault fault;

	if (outcome < WIRE_NOTED || outcome > WIRE_FAILED ||
		!wire_text(w, WIRE_TEXT, text, sizeof(text)) ||
		wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES) {
		fault_set(&fault, FAULT_REQUEST, "answer",
			"the outcome is out of range, or the text or the cursor is too long");
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	if (!r || r->number != number) {
		/* A request of the previous daemon, or one that was taken back. */
		log_client(c->uid, LOG_NOTE,
			"request %" PRIu64 ": answer of rank %" PRIu64
			" of run %s ignored: no such request is open",
			number, s->rank, s->run);
		return;
	}

	struct participant *p = participant_of(r, s);

	if (outcome == p->outcome)
		return; /* reported twice */
	p->outcome = (enum wire_outcome)outcome;
	show(s);
	pass_on(c->control, r, p, w);
}

/* ---- sessions come and go ---- */

void request_join(struct session *s)
{
	struct request *r = request_of(s);

	if (r && !add_participant(r, s))
		log_client(s->connection->uid, LOG_WARNING,
			"request %" PRIu64 ": rank %" PRIu64
			" of run %s does not see it: out of memory",
			r->number, s->rank, s->run);
	show(s);
}

void request_leave(struct session *s)
{
	struct control *control = s->control;
	struct request *r = s->helper ? NULL : control->requests.first;
	struct participant *p;

	while (r && (r->stream->slot != s->stream->slot || strcmp(r->run, s->run) != 0))
		r = r->next;
	p = r ? participant_of(r, s) : NULL;
	if (!p || !participant_waits(p))
		return;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (control->sessions.of[id] != s &&
			request_concerns(control->sessions.of[id], r->stream, r->run) &&
			is_participant(control->sessions.of[id], p))
			return; /* it has another ring */
	p->outcome = WIRE_GONE;
	pass_on(control, r, p, NULL);
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
	log_client(c->uid, LOG_NOTE, "request %" PRIu64 ": taken back: its operator has left",
		r->number);
	take_back(c->control, r);
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
	const struct generations *all = &c->control->generations;
	/* An edit ends with an attach, which uses the newest stream: it may have new datasets. */
	const struct stream *stream = generations_stream(all, c->session->stream->slot);

	wire_set_bytes(&w, WIRE_CURSOR, stream->begin_bytes, stream->begin_length);
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
	if (!r->fetched) {
		log_client(c->uid, LOG_NOTE, "request %" PRIu64 ": taken back", r->number);
		take_back(c->control, r);
	}
	connection_send(c, serial, &out);
}

/* ---- the beginning of one ---- */

bool request_invite(struct control *control, struct request *r)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (request_concerns(control->sessions.of[id], r->stream, r->run) &&
			!add_participant(r, control->sessions.of[id]))
			return false;
	return true;
}

void request_begin(struct connection *asker, struct request *r)
{
	struct control *control = asker->control;

	assert(!asker->request && request_waiting(r) > 0);
	r->number = ++control->requests.last;
	r->since_ms = connection_now(asker);
	r->asker = asker;
	asker->request = r;
	r->next = control->requests.first;
	control->requests.first = r;
	show_all(control, r->stream, r->run);
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

void requests_check(const struct requests *requests)
{
	for (const struct request *r = requests->first; r; r = r->next) {
		assert(r->number > 0 && r->number <= requests->last);
		assert(r->stream && r->args && r->participants <= LIMIT_SESSIONS);
		assert(request_waiting(r) > 0); /* otherwise it would have ended */
		assert(!r->asker || (r->asker->request == r && !r->asker->closing));
		for (const struct request *other = r->next; other; other = other->next)
			assert(other->number < r->number &&
				(other->stream->slot != r->stream->slot ||
					strcmp(other->run, r->run) != 0));
	}
}
