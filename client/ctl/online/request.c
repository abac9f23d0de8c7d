/*
 * tokctl mix, skip, checkpoint, drain, rescale: an operator's word to a running job. The daemon
 * shows it to the job's sessions here, the job carries it out on all ranks at one step, and each
 * session's answer comes back. Until a rank has fetched the request it can be taken back, and is,
 * when time is up or we are interrupted.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "daemon/config/config.h"
#include "proto/cursor.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum {
	TIMEOUT_S = 60,
	TIMEOUT_MOST_S = 1000000,
	NAMED = 8,   /* ranks in one line */
	LISTED = 16, /* ranks of a new world, or the first and last few of more: */
	LISTED_EDGE = 4,
};

struct answer {
	uint64_t rank, peer, pid, world, micro_batch;
	char host[LIMIT_NAME_BYTES + 1];
	enum wire_outcome outcome; /* 0: only known from status */
	bool same;
	char text[LIMIT_TEXT_BYTES + 1];
};

struct request {
	const char *kind, *stream, *run, *tag; /* NULL: not given */
	bool json;
	uint64_t timeout_s, world, micro_batch; /* micro_batch 0: as it is */
	char args[WIRE_ARGS_BYTES];
	size_t args_length;

	int fd, signals;
	char *socket;
	struct packet packet;
	struct ctl_out out;
	uint64_t number, sessions, waiting;
	char asked_run[LIMIT_NAME_BYTES + 1];
	struct answer *answer;
	size_t answers;
	struct cursor cursor; /* of the first that was done */
	bool has_cursor, has_acts_from;
	uint64_t from, acts_from, world_before, micro_batch_before; /* of that one */
};

static const char *const outcomes[] = {"waiting", "noted", "done", "failed", "gone"};

/* ---- the command line ---- */

/* A line of the arguments. False: they are too long. */
__attribute__((format(printf, 2, 3))) static bool put_line(
	struct request *r, const char *format, ...)
{
	size_t room = sizeof(r->args) - r->args_length;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(r->args + r->args_length, room, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= room)
		return false;
	r->args_length += (size_t)n;
	return true;
}

/* "D=W"; a name may have '=' itself. */
static int read_weight(struct request *r, const char *argument, double *sum)
{
	const char *equals = strrchr(argument, '=');
	char name[LIMIT_NAME_BYTES + 1];
	double weight;

	if (!equals || equals == argument || (size_t)(equals - argument) >= sizeof(name))
		return ctl_usage(r->kind, "'%s': must be DATASET=WEIGHT", argument);
	memcpy(name, argument, (size_t)(equals - argument));
	name[equals - argument] = 0;
	if (!wire_label_ok(name))
		return ctl_usage(r->kind, "'%s': not a name of a dataset", name);
	if (!ctl_weight(equals + 1, &weight))
		return ctl_usage(r->kind, "%s: weight '%s' must be a finite number, 0 or more",
			name, equals + 1);
	*sum += weight;
	if (!put_line(r, "weight %.17g %s\n", weight, name))
		return ctl_fail("%s: more datasets than a request holds", r->kind);
	return CTL_OK;
}

static int read_mix(struct request *r, int others, char **argv)
{
	double sum = 0;
	int status = CTL_OK;

	if (others < 2)
		return ctl_usage(r->kind, "name datasets and weights: web=0.7 code=0.3");
	for (int i = 2; i <= others && status == CTL_OK; i++)
		status = read_weight(r, argv[i], &sum);
	if (status == CTL_OK && !(sum > 0))
		return ctl_usage(r->kind, "give at least one dataset a weight above 0");
	return status;
}

struct texts {
	const char *at, *samples, *tag, *world, *micro_batch, *timeout;
};

/* A number as a line; @key is its option's name too. */
static int read_number(struct request *r, const char *key, const char *text, uint64_t least,
	uint64_t most, uint64_t *to)
{
	uint64_t value;

	if (!ctl_number(text, &value) || value < least || value > most)
		return ctl_usage(r->kind,
			"--%s %s: must be a whole number from %" PRIu64 " to %" PRIu64, key, text,
			least, most);
	put_line(r, "%s %" PRIu64 "\n", key, value);
	if (to)
		*to = value;
	return CTL_OK;
}

static int read_kind(struct request *r, const struct texts *t, int others, char **argv)
{
	bool mix = strcmp(r->kind, "mix") == 0, skip = strcmp(r->kind, "skip") == 0;
	bool rescale = strcmp(r->kind, "rescale") == 0;
	int status = CTL_OK;

	if ((t->at && !mix) || (t->samples && !skip) || (t->tag && (mix || skip)) ||
		((t->world || t->micro_batch) && !rescale))
		return ctl_usage(r->kind, "an option of another command");
	if (!mix && others > 1)
		return ctl_usage(r->kind, "'%s' is one word too many", argv[2]);
	if (skip && !t->samples)
		return ctl_usage(r->kind, "needs --samples N");
	if (rescale && !t->world)
		return ctl_usage(r->kind, "needs --world W");
	if (t->at)
		status = read_number(r, "at", t->at, 0, UINT64_MAX - 1, NULL);
	if (t->samples)
		status = read_number(r, "samples", t->samples, 1, UINT64_MAX, NULL);
	if (t->world)
		status = read_number(r, "world", t->world, 1, LIMIT_WORLD, &r->world);
	if (t->micro_batch && status == CTL_OK)
		status = read_number(
			r, "micro", t->micro_batch, 1, LIMIT_MICRO_BATCH, &r->micro_batch);
	if (t->tag && !wire_name_ok(t->tag))
		return ctl_usage(r->kind,
			"--tag %s: 1 to %d characters without '/' and leading dot", t->tag,
			LIMIT_NAME_BYTES);
	if (t->tag)
		put_line(r, "tag %s\n", t->tag);
	r->tag = t->tag;
	return mix && status == CTL_OK ? read_mix(r, others, argv) : status;
}

static int read_timeout(struct request *r, const char *text)
{
	r->timeout_s = TIMEOUT_S;
	if (text && (!ctl_number(text, &r->timeout_s) || r->timeout_s < 1 ||
			    r->timeout_s > TIMEOUT_MOST_S))
		return ctl_usage(
			r->kind, "--timeout %s: must be seconds, 1 to %d", text, TIMEOUT_MOST_S);
	return CTL_OK;
}

/* What the config tells before anybody is asked. */
static int check_config(const struct request *r, const char *path)
{
	struct fault fault;
	struct config *config;
	int status = CTL_OK;

	if (!path || strcmp(r->kind, "mix") != 0)
		return CTL_OK;
	config = config_load(path, &fault);
	if (!config)
		return ctl_fail("%s", fault.text);
	for (uint32_t i = 0; i < config->streams; i++)
		if (strcmp(config->stream[i].name, r->stream) == 0 &&
			(config->stream[i].epochs || config->stream[i].samples))
			status = ctl_fail(
				"mix: stream %s is finite, its mix stays as it is while it runs",
				r->stream);
	config_free(config);
	return status;
}

/* ---- answers ---- */

static struct answer *answer_of(struct request *r, uint64_t rank, uint64_t peer)
{
	for (size_t i = 0; i < r->answers; i++)
		if (r->answer[i].rank == rank && r->answer[i].peer == peer)
			return &r->answer[i];

	struct answer *list = realloc(r->answer, (r->answers + 1) * sizeof(*list));

	if (!list)
		return NULL;
	r->answer = list;
	list[r->answers] = (struct answer){.rank = rank, .peer = peer};
	return &list[r->answers++];
}

/* Who it is, from a message that says so. NULL: out of memory. */
static struct answer *who(struct request *r, const struct wire *w)
{
	struct answer *a = answer_of(r, wire_number(w, WIRE_RANK), wire_number(w, WIRE_PEER));

	if (!a)
		return NULL;
	a->pid = wire_number(w, WIRE_PID);
	a->world = wire_number(w, WIRE_WORLD);
	a->micro_batch = wire_number(w, WIRE_MICRO);
	if (!wire_text(w, WIRE_HOST, a->host, sizeof(a->host)))
		a->host[0] = 0;
	return a;
}

/* "rank 1 (pid 12 on HOST)" */
static const char *name(const struct answer *a, char *to, size_t room)
{
	char peer[32] = "";

	if (a->peer)
		snprintf(peer, sizeof(peer), ", peer %" PRIu64, a->peer);
	snprintf(to, room, "rank %" PRIu64 "%s (pid %" PRIu64 " on %s)", a->rank, peer, a->pid,
		a->host[0] ? a->host : "?");
	return to;
}

static void print_answer(struct request *r, const struct answer *a)
{
	struct ctl_out *out = &r->out;
	char who_it_is[160];

	if (!r->json) {
		ctl_put_left(out, name(a, who_it_is, sizeof(who_it_is)), 0);
		ctl_put(out, a->outcome == WIRE_NOTED  ? ": has seen it"
			     : a->outcome == WIRE_GONE ? ": ended without an answer"
						       : ": ");
		ctl_put(out, a->outcome == WIRE_DONE && !a->text[0] ? "done" : "");
		ctl_put_left(out, a->text, 0);
		ctl_put(out, "\n");
		ctl_finish(out, CTL_OK);
		return;
	}
	ctl_put(out, "{");
	ctl_put_pair(out, "request", r->number);
	ctl_put(out, ",\"outcome\":");
	ctl_put_string(out, outcomes[a->outcome]);
	const struct {
		const char *key;
		uint64_t value;
	} pairs[] = {{"rank", a->rank}, {"world", a->world}, {"micro", a->micro_batch},
		{"peer", a->peer}, {"pid", a->pid}, {"waiting", r->waiting}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		ctl_put(out, ",");
		ctl_put_pair(out, pairs[i].key, pairs[i].value);
	}
	ctl_put(out, ",\"host\":");
	ctl_put_string(out, a->host);
	ctl_put(out, ",\"text\":");
	ctl_put_string(out, a->text);
	ctl_put(out, "}\n");
	ctl_finish(out, CTL_OK);
}

/* False after an error. */
static bool take_answer(struct request *r, const struct wire *w)
{
	struct wire_bytes cursor = wire_bytes(w, WIRE_CURSOR);
	uint64_t outcome = wire_number(w, WIRE_OUTCOME);
	struct answer *a = who(r, w);
	struct fault why;

	if (!a) {
		ctl_fail("out of memory");
		return false;
	}
	if (wire_number(w, WIRE_NUMBER) != r->number || outcome < WIRE_NOTED ||
		outcome > WIRE_GONE || a->world == 0 || a->world > LIMIT_WORLD ||
		a->micro_batch == 0 || a->micro_batch > LIMIT_MICRO_BATCH) {
		ctl_fail("the daemon passed on an answer that is none of ours: is it of another "
			 "version?");
		return false;
	}
	a->outcome = (enum wire_outcome)outcome;
	a->same = !wire_has(w, WIRE_SAME) || wire_number(w, WIRE_SAME);
	if (!wire_text(w, WIRE_TEXT, a->text, sizeof(a->text)))
		a->text[0] = 0;
	for (char *p = a->text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?'; /* it is one line, whatever a trainer says */
	r->waiting = wire_number(w, WIRE_WAITING);
	print_answer(r, a);
	if (outcome != WIRE_DONE || r->has_cursor || !wire_has(w, WIRE_CURSOR))
		return true;
	if (!cursor_decode(&r->cursor, cursor.at, cursor.n, &why)) {
		ctl_fail("the cursor in an answer: %s: %s", why.field, why.text);
		return false;
	}
	r->has_cursor = true;
	r->has_acts_from = wire_has(w, WIRE_ACTS_FROM);
	r->from = wire_number(w, WIRE_FROM);
	r->acts_from = wire_number(w, WIRE_ACTS_FROM);
	r->world_before = a->world;
	r->micro_batch_before = a->micro_batch;
	return true;
}

/* ---- waiting ---- */

static uint64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int lost(const struct request *r)
{
	return ctl_fail(
		"the daemon at %s went away, and the request with it; %" PRIu64 " of %" PRIu64
		" sessions had not answered: if a rank had fetched it they may carry it out, see "
		"`tokctl status`",
		r->socket, r->waiting, r->sessions);
}

/* Names of those with an outcome of @which, a bit each. How many there are. */
static size_t name_those(const struct request *r, unsigned which, char *to, size_t room)
{
	size_t n = 0, length = 0;
	char one[160];

	to[0] = 0;
	for (size_t i = 0; i < r->answers; i++) {
		if (!(which >> r->answer[i].outcome & 1))
			continue;
		if (++n > NAMED)
			continue;
		length += (size_t)snprintf(to + length, room - length, "%s%s", n > 1 ? ", " : "",
			name(&r->answer[i], one, sizeof(one)));
	}
	if (n > NAMED)
		snprintf(to + length, room - length, " and %zu others", n - NAMED);
	return n;
}

enum {
	UNSEEN = 1 << 0,
	NOTED = 1 << WIRE_NOTED,
	ANSWERED = 1 << WIRE_DONE | 1 << WIRE_FAILED,
};

static void take_any(void *context, const struct wire *w)
{
	struct request *r = context;

	if (w->op == WIRE_ANSWER)
		take_answer(r, w);
	else if (w->op == WIRE_SESSION && wire_number(w, WIRE_REQUEST_KEY) == r->number)
		who(r, w); /* it has not answered; whether it has seen it is known from its note */
}

/* Takes it back. 1: it is over, all have answered meanwhile; else an exit status after the line is
 * said. */
static int give_up(struct request *r, const char *why)
{
	struct wire question = {.op = WIRE_CANCEL};
	char names[NAMED * 170 + 40], others[NAMED * 170 + 40];

	if (!ctl_status_list(r->fd, &r->packet, take_any, r))
		return CTL_FAILED;
	wire_set(&question, WIRE_NUMBER, r->number);

	int error = link_send(r->fd, &question, r->packet.bytes);

	if (error < 0)
		return lost(r);
	do {
		if (!ctl_receive(r->fd, &r->packet))
			return CTL_FAILED;
		take_any(r, &r->packet.wire);
	} while (r->packet.wire.op == WIRE_ANSWER);
	if (r->waiting == 0)
		return CTL_OK;
	if (r->packet.wire.op != WIRE_CANCELLED)
		return ctl_fail("%s, and the daemon does not take the request back", why);
	if (wire_number(&r->packet.wire, WIRE_FETCHED)) {
		name_those(r, UNSEEN | NOTED, names, sizeof(names));
		name_those(r, ANSWERED, others, sizeof(others));
		return ctl_fail("%s: the job has fetched the request and may still carry it out; "
				"not answered: %s; "
				"answered: %s",
			why, names, others[0] ? others : "none");
	}
	if (name_those(r, UNSEEN, names, sizeof(names)))
		return ctl_fail("%s has not come to control(): %s; the request is taken back, "
				"nothing was changed",
			names, why);
	return ctl_fail("all sessions here have seen it, but not every process of the job has come "
			"to control(): "
			"%s; the request is taken back, nothing was changed",
		why);
}

/* Until everybody has answered. An exit status; why not is printed. */
static int await(struct request *r)
{
	uint64_t until = clock_ms() + r->timeout_s * 1000;
	char why[60];

	snprintf(why, sizeof(why), "not within %" PRIu64 " s", r->timeout_s);
	while (r->waiting > 0) {
		uint64_t now = clock_ms();
		enum ctl_heard heard = ctl_hear(
			r->fd, &r->packet, now < until ? (int)(until - now) : 0, r->signals);

		switch (heard) {
		case CTL_MESSAGE:
			break;
		case CTL_LOST:
			return lost(r);
		case CTL_BAD:
			return CTL_FAILED;
		case CTL_TIMEOUT:
		case CTL_OTHER: {
			int status = give_up(r, heard == CTL_OTHER ? "interrupted" : why);

			if (status != CTL_OK || r->waiting > 0)
				return CTL_FAILED;
			continue;
		}
		}
		if (r->packet.wire.op == WIRE_ANSWER && !take_answer(r, &r->packet.wire))
			return CTL_FAILED;
	}
	return CTL_OK;
}

/* ---- what came of it ---- */

static void put_rank(struct request *r, uint64_t rank, uint64_t micro_batch)
{
	uint64_t end = cursor_end(&r->cursor);
	uint64_t first = order_rank_position(r->cursor.next, 0, rank, r->world, micro_batch);
	uint64_t rows = first >= end ? 0 : end - first < micro_batch ? end - first : micro_batch;
	char line[160];

	if (!r->json) {
		if (rows)
			snprintf(line, sizeof(line),
				"  rank %" PRIu64 " gets %" PRIu64 "..%" PRIu64 " first\n", rank,
				first, first + rows - 1);
		else
			snprintf(
				line, sizeof(line), "  rank %" PRIu64 " gets padding only\n", rank);
		ctl_put(&r->out, line);
		return;
	}
	ctl_put(&r->out, rank ? ",{" : "{");
	ctl_put_pair(&r->out, "rank", rank);
	if (rows)
		snprintf(line, sizeof(line), ",\"first\":%" PRIu64 ",\"last\":%" PRIu64 "}", first,
			first + rows - 1);
	else
		snprintf(line, sizeof(line), ",\"first\":null,\"last\":null}");
	ctl_put(&r->out, line);
}

static void put_ranks(struct request *r, uint64_t micro_batch)
{
	bool all = r->json || r->world <= LISTED;

	for (uint64_t rank = 0; rank < r->world && !r->out.failed; rank++) {
		if (!all && rank == LISTED_EDGE) {
			ctl_put(&r->out, "  …\n");
			rank = r->world - LISTED_EDGE;
		}
		put_rank(r, rank, micro_batch);
	}
}

/* Batches that each rank gets from here on: as many on all, the last ones padded. */
static uint64_t batches(const struct cursor *c, uint64_t global)
{
	uint64_t left = cursor_end(c) - c->next;

	assert(global > 0); /* no session has a world or micro-batch of 0 */
	return left / global + (left % global != 0);
}

static void put_steps(struct request *r, uint64_t before, uint64_t after)
{
	const char *change = before == after	   ? "as before"
			     : after % before == 0 ? "a multiple of the one before"
			     : before % after == 0
				     ? "a divisor of the one before"
				     : "neither a multiple nor a divisor of the one before: steps "
				       "no longer end where they did";
	char line[300];

	snprintf(line, sizeof(line), "global batch %" PRIu64 " -> %" PRIu64 ": %s\n", before, after,
		change);
	ctl_put(&r->out, line);
	if (cursor_end(&r->cursor) != UINT64_MAX) {
		snprintf(line, sizeof(line),
			"left to the end, position %" PRIu64 ": %" PRIu64
			" batches on each of the old ranks, %" PRIu64 " on each of the new ones\n",
			cursor_end(&r->cursor), batches(&r->cursor, before),
			batches(&r->cursor, after));
		ctl_put(&r->out, line);
	}
}

static void put_rescale(struct request *r)
{
	uint64_t micro_batch = r->micro_batch ? r->micro_batch : r->micro_batch_before;
	uint64_t before = r->world_before * r->micro_batch_before, after = r->world * micro_batch;
	char line[200];

	if (!r->json) {
		snprintf(line, sizeof(line),
			"world %" PRIu64 " -> %" PRIu64 ", micro-batch %" PRIu64 " -> %" PRIu64
			": from position %" PRIu64 " on every sample once, as before\n",
			r->world_before, r->world, r->micro_batch_before, micro_batch,
			r->cursor.next);
		ctl_put(&r->out, line);
		put_ranks(r, micro_batch);
		put_steps(r, before, after);
		return;
	}
	const struct {
		const char *key;
		uint64_t value;
	} pairs[] = {{"world_before", r->world_before}, {"micro_before", r->micro_batch_before},
		{"global_before", before}, {"world", r->world}, {"micro", micro_batch},
		{"global", after}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, pairs[i].key, pairs[i].value);
	}
	if (cursor_end(&r->cursor) != UINT64_MAX) {
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, "batches_before", batches(&r->cursor, before));
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, "batches", batches(&r->cursor, after));
	}
	ctl_put(&r->out, ",\"ranks\":[");
	put_ranks(r, micro_batch);
	ctl_put(&r->out, "]");
}

static void put_optional(struct request *r, const char *key, uint64_t value, bool there)
{
	ctl_put(&r->out, ",");
	if (there) {
		ctl_put_pair(&r->out, key, value);
		return;
	}
	ctl_put(&r->out, "\"");
	ctl_put(&r->out, key);
	ctl_put(&r->out, "\":null");
}

static void put_result_json(struct request *r)
{
	struct ctl_out *out = &r->out;

	ctl_put(out, "{");
	ctl_put_pair(out, "request", r->number);
	ctl_put(out, ",\"kind\":");
	ctl_put_string(out, r->kind);
	ctl_put(out, ",\"stream\":");
	ctl_put_string(out, r->stream);
	ctl_put(out, ",\"run\":");
	ctl_put_string(out, r->asked_run);
	ctl_put(out, ",");
	ctl_put_pair(out, "sessions", r->answers);
	put_optional(r, "position", r->cursor.next, true);
	if (strcmp(r->kind, "mix") == 0 || strcmp(r->kind, "skip") == 0) {
		put_optional(r, "from", r->from, r->has_acts_from);
		put_optional(r, "acts_from", r->acts_from, r->has_acts_from);
	} else {
		ctl_put(out, ",\"tag\":");
		if (r->tag)
			ctl_put_string(out, r->tag);
		else
			ctl_put(out, "null");
	}
	if (r->world)
		put_rescale(r);
	ctl_put(out, "}\n");
}

static void put_result(struct request *r)
{
	bool mix = strcmp(r->kind, "mix") == 0, skip = strcmp(r->kind, "skip") == 0;
	char line[300];

	if ((mix || skip) && !r->has_acts_from)
		snprintf(line, sizeof(line), "%s: done, the run is at position %" PRIu64 "\n",
			r->kind, r->cursor.next);
	else if (mix)
		snprintf(line, sizeof(line),
			"mix acts from position %" PRIu64 ", the run is at %" PRIu64 "\n",
			r->acts_from, r->from);
	else if (skip)
		snprintf(line, sizeof(line), "skipped from position %" PRIu64 " to %" PRIu64 "\n",
			r->from, r->acts_from);
	else
		snprintf(line, sizeof(line), "saved at position %" PRIu64 "%s%s%s\n",
			r->cursor.next, r->tag ? ", tag " : "", r->tag ? r->tag : "",
			strcmp(r->kind, "checkpoint") == 0 ? "" : ", the job leaves");
	ctl_put(&r->out, line);
	if (r->world)
		put_rescale(r);
}

/* All have answered, or are gone. */
static int conclude(struct request *r)
{
	char names[NAMED * 170 + 40], one[160];
	bool differ = false;

	for (size_t i = 0; i < r->answers; i++) {
		const struct answer *a = &r->answer[i];

		if (a->outcome == WIRE_FAILED)
			return ctl_fail("%s: %s", name(a, one, sizeof(one)), a->text);
		differ |= a->outcome == WIRE_DONE && !a->same;
	}
	if (name_those(r, 1 << WIRE_GONE, names, sizeof(names)))
		return ctl_fail(
			"%s ended without an answer: whether the job carried it out, its next "
			"checkpoint tells",
			names);
	if (!r->has_cursor)
		return ctl_fail("the job says it is done, but not where it is");
	if (differ) {
		size_t length = 0, n = 0;

		for (size_t i = 0; i < r->answers; i++)
			if (!r->answer[i].same && n++ < NAMED)
				length += (size_t)snprintf(names + length, sizeof(names) - length,
					"%s%s", n > 1 ? ", " : "",
					name(&r->answer[i], one, sizeof(one)));
		return ctl_fail(
			"the ranks are not at one place: the cursors of %s%s differ from the first "
			"that came, "
			"at position %" PRIu64,
			names, n > NAMED ? " and others" : "", r->cursor.next);
	}
	(r->json ? put_result_json : put_result)(r);
	return ctl_finish(&r->out, CTL_OK);
}

/* ---- asking ---- */

static int ask(struct request *r)
{
	struct wire question = {.op = WIRE_REQUEST};
	const struct wire *w = &r->packet.wire;

	wire_set_text(&question, WIRE_STREAM, r->stream);
	wire_set_text(&question, WIRE_KIND, r->kind);
	wire_set_text(&question, WIRE_ARGS, r->args);
	if (r->run)
		wire_set_text(&question, WIRE_RUN, r->run);
	if (!ctl_ask(r->fd, &question, &r->packet))
		return CTL_FAILED;
	if (w->op != WIRE_ASKED || !wire_text(w, WIRE_RUN, r->asked_run, sizeof(r->asked_run)))
		return ctl_fail("not a daemon that we understand: is it of another version?");
	r->number = wire_number(w, WIRE_NUMBER);
	r->sessions = r->waiting = wire_number(w, WIRE_SESSIONS);

	int status = await(r);

	return status == CTL_OK ? conclude(r) : ctl_finish(&r->out, status);
}

/* An interruption is news like any other, so that the request can be taken back. */
static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

static int request(struct request *r, const char *socket, const char *config)
{
	int status = check_config(r, config);

	if (status != CTL_OK)
		return status;
	r->fd = ctl_connect(socket, config, &r->socket, &r->packet);
	if (r->fd < 0)
		return CTL_FAILED;
	r->signals = open_signals();
	status = ask(r);
	close(r->signals);
	close(r->fd);
	cursor_free(&r->cursor);
	free(r->answer);
	free(r->socket);
	return status;
}

int ctl_request(int argc, char **argv)
{
	static struct request r;
	const char *socket = NULL, *config = NULL;
	struct texts t = {0};
	const struct ctl_option options[] = {
		{.name = "run", .value = &r.run},
		{.name = "socket", .value = &socket},
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "timeout", .value = &t.timeout},
		{.name = "json", .flag = &r.json},
		{.name = "at", .value = &t.at},
		{.name = "samples", .value = &t.samples},
		{.name = "tag", .value = &t.tag},
		{.name = "world", .value = &t.world},
		{.name = "micro", .value = &t.micro_batch},
	};
	int others = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0])), status;

	if (others < 0)
		return CTL_USAGE;
	r.kind = argv[0];
	if (others < 1)
		return ctl_usage(r.kind, "name a stream");
	r.stream = argv[1];
	status = read_timeout(&r, t.timeout);
	if (status == CTL_OK)
		status = read_kind(&r, &t, others, argv);
	return status == CTL_OK ? request(&r, socket, config) : status;
}
