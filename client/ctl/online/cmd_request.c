/*
 * tokctl mix, skip, checkpoint, drain, rescale: an operator's request to a running job. The daemon
 * shows it to the job's sessions on this node, all ranks of the job carry it out at the same step,
 * and each session's answer comes back. On a timeout or an interruption the request is cancelled,
 * unless a rank has already fetched it.
 */
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { NAMED = 8, NAMES_BYTES = NAMED * 170 + 40 }; /* participants named in one line */

/* Sets of participants, by what they answered: one bit each. */
enum {
	SILENT = 1 << 0, /* no answer; known from the status only */
	NOTED = 1 << WIRE_NOTED,
	FAILED = 1 << WIRE_FAILED,
	GONE = 1 << WIRE_GONE,
	DIFFERS = 1 << (WIRE_GONE + 1), /* done, but its cursor is not the first one's */
};

/* A session that takes part. */
struct asked_rank {
	uint64_t rank, peer;
	unsigned set;
	char name[170]; /* "rank 1 (pid 12 on HOST)" */
	char text[LIMIT_TEXT_BYTES + 1];
};

struct asked {
	const struct ctl_arguments *a;
	struct ctl_link link;
	int signals;
	uint64_t serial; /* of the query that created it */
	uint64_t number, sessions, waiting;
	char run[LIMIT_NAME_BYTES + 1];
	struct asked_rank *participant;
	size_t participants;
	struct emit e;
	struct cursor cursor; /* from here on, of the first that was done; no datasets: none was */
	bool has_acts_from;
	uint64_t from, acts_from, world_before, micro_batch_before;
};

/* ---- the participants ---- */

/* Finds or adds a participant. NULL after an error. */
static struct asked_rank *take_participant(
	struct asked *r, uint64_t rank, uint64_t peer, uint64_t pid, const char *host)
{
	struct asked_rank *p = r->participant;
	char of_rank[32] = "";
	size_t i = 0;

	while (i < r->participants && (p[i].rank != rank || p[i].peer != peer))
		i++;
	if (i == r->participants) {
		if (!ctl_grow((void **)&r->participant, i, sizeof(*p)))
			return NULL;
		r->participants++;
		p = r->participant;
		p[i] = (struct asked_rank){.rank = rank, .peer = peer, .set = SILENT};
	}
	if (peer)
		snprintf(of_rank, sizeof(of_rank), ", peer %" PRIu64, peer);
	snprintf(p[i].name, sizeof(p[i].name), "rank %" PRIu64 "%s (pid %" PRIu64 " on %s)", rank,
		of_rank, pid, host);
	return &p[i];
}

/* Writes the names of those in any of the sets @which, and with @text unless it is NULL, to @to,
 * and takes them out of these sets. Returns their number. */
static size_t name_all(struct asked *r, unsigned which, const char *text, char to[NAMES_BYTES])
{
	size_t n = 0, used = 0;

	to[0] = 0;
	for (size_t i = 0; i < r->participants; i++) {
		struct asked_rank *p = &r->participant[i];

		if (!(p->set & which) || (text && strcmp(text, p->text) != 0))
			continue;
		p->set &= ~which;
		if (n++ < NAMED)
			used += (size_t)snprintf(
				to + used, NAMES_BYTES - used, "%s%s", n > 1 ? ", " : "", p->name);
	}
	if (n > NAMED)
		snprintf(to + used, NAMES_BYTES - used, " and %zu others", n - NAMED);
	return n;
}

/* Stores and prints an answer. False after an error. */
static bool take_answer(void *context, const struct wire *w)
{
	struct asked *r = context;
	static const char *const outcomes[] = {[WIRE_NOTED] = "noted",
		[WIRE_DONE] = "done",
		[WIRE_FAILED] = "failed",
		[WIRE_GONE] = "gone"};
	struct wire_bytes cursor = wire_bytes(w, WIRE_CURSOR);
	uint64_t outcome = wire_number(w, WIRE_OUTCOME), world = wire_number(w, WIRE_WORLD),
		 micro_batch = wire_number(w, WIRE_MICRO);
	char host[LIMIT_NAME_BYTES + 1] = "";
	struct asked_rank *p;
	struct emit *e = &r->e;
	struct fault fault;

	wire_text(w, WIRE_HOST, host, sizeof(host));
	p = take_participant(r, wire_number(w, WIRE_RANK), wire_number(w, WIRE_PEER),
		wire_number(w, WIRE_PID), host);
	if (!p)
		return false;
	if (wire_number(w, WIRE_SERIAL) != r->serial || wire_number(w, WIRE_NUMBER) != r->number ||
		outcome < WIRE_NOTED || outcome > WIRE_GONE || world == 0 || world > LIMIT_WORLD ||
		micro_batch == 0 || micro_batch > LIMIT_MICRO_BATCH)
		return ctl_link_fail(
			&r->link, "the daemon sent an answer to another request; " PHRASE_RELEASE);
	p->set = 1u << outcome;
	if (outcome == WIRE_DONE && wire_has(w, WIRE_SAME) && !wire_number(w, WIRE_SAME))
		p->set |= DIFFERS;
	if (!wire_text(w, WIRE_TEXT, p->text, sizeof(p->text)))
		p->text[0] = 0;
	fault_line(p->text);
	r->waiting = wire_number(w, WIRE_WAITING);
	emit_number(e, "request", NULL, r->number);
	emit_text(e, "outcome", NULL, outcomes[outcome]);
	emit_number(e, "rank", NULL, p->rank);
	emit_number(e, "world", NULL, world);
	emit_number(e, "micro", NULL, micro_batch);
	emit_number(e, "peer", NULL, p->peer);
	emit_number(e, "pid", NULL, wire_number(w, WIRE_PID));
	emit_number(e, "waiting", NULL, r->waiting);
	emit_text(e, "host", NULL, host);
	emit_text(e, "text", NULL, p->text);
	if (outcome == WIRE_DONE)
		emit_line(e, "%s: %s", p->name, p->text[0] ? p->text : "done");
	else if (outcome != WIRE_FAILED) /* the error says it */
		emit_line(e, "%s: %s%s", p->name,
			outcome == WIRE_NOTED ? "noted it" : "ended without an answer", p->text);
	emit_end(e, CTL_OK);
	if (outcome != WIRE_DONE || r->cursor.datasets || !wire_has(w, WIRE_CURSOR))
		return true;
	if (!cursor_decode(&r->cursor, cursor.at, cursor.n, &fault))
		return ctl_link_fail(
			&r->link, "cursor in the answer: %s: %s", fault.field, fault.text);
	r->has_acts_from = wire_has(w, WIRE_ACTS_FROM);
	r->from = wire_number(w, WIRE_FROM);
	r->acts_from = wire_number(w, WIRE_ACTS_FROM);
	r->world_before = world;
	r->micro_batch_before = micro_batch;
	return true;
}

/* ---- the result ---- */

static const struct order_segment *mix_at(const struct cursor *c, uint64_t position)
{
	struct cursor at = *c;

	at.next = position > c->segment[0]->start ? position : c->segment[0]->start;
	return cursor_now(&at);
}

/* Each dataset's share before and after. */
static void put_mix(struct asked *r)
{
	/* The new mix may begin where the run is. */
	uint64_t old = r->from < r->acts_from || r->acts_from == 0 ? r->from : r->acts_from - 1;
	const struct order_segment *before = mix_at(&r->cursor, old),
				   *after = mix_at(&r->cursor, r->acts_from);

	emit_open(&r->e, "mix", '[');
	for (uint32_t d = 0; r->has_acts_from && d < r->cursor.datasets; d++) {
		const char *name = r->cursor.dataset[d].name;

		emit_open(&r->e, "", '{');
		emit_text(&r->e, "dataset", NULL, name);
		emit_decimal(&r->e, "before", NULL, ctl_fraction(before, d), 0);
		emit_decimal(&r->e, "after", NULL, ctl_fraction(after, d), 0);
		emit_close(&r->e, '}');
		emit_line(&r->e, "  %s %.6f %% -> %.6f %%", name, 100 * ctl_fraction(before, d),
			100 * ctl_fraction(after, d));
	}
	emit_close(&r->e, ']');
}

static void put_rescale(struct asked *r)
{
	uint64_t world = ctl_number(r->a, "world", 0),
		 micro_batch = ctl_number(r->a, "micro", r->micro_batch_before),
		 before = r->world_before * r->micro_batch_before, after = world * micro_batch;
	struct emit *e = &r->e;

	emit_number(e, "world_before", NULL, r->world_before);
	emit_number(e, "micro_before", NULL, r->micro_batch_before);
	emit_number(e, "global_before", NULL, before);
	emit_number(e, "world", NULL, world);
	emit_number(e, "micro", NULL, micro_batch);
	emit_number(e, "global", NULL, after);
	emit_line(e,
		"world %" PRIu64 " -> %" PRIu64 ", micro-batch %" PRIu64 " -> %" PRIu64
		": the next job begins at position %" PRIu64,
		r->world_before, world, r->micro_batch_before, micro_batch, r->cursor.next);
	emit_line(e, "global batch %" PRIu64 " -> %" PRIu64 "%s", before, after,
		after % before == 0 || before % after == 0
			? ""
			: ": neither a multiple nor a divisor of the old one, so steps no longer "
			  "end at the same positions");
}

static void put_result(struct asked *r)
{
	const char *kind = r->a->command->name;
	bool mix = r->a->command == &ctl_mix, edit = mix || r->a->command == &ctl_skip;
	struct emit *e = &r->e;

	emit_number(e, "request", NULL, r->number);
	emit_text(e, "kind", NULL, kind);
	emit_text(e, "stream", NULL, r->a->argument[0]);
	emit_text(e, "run", NULL, r->run);
	emit_number(e, "sessions", NULL, r->participants);
	emit_number(e, "position", NULL, r->cursor.next);
	if (edit) {
		emit_optional(e, "from", NULL, r->from, r->has_acts_from);
		emit_optional(e, "acts_from", NULL, r->acts_from, r->has_acts_from);
	} else {
		const char *tag = ctl_text(r->a, "tag");

		emit_text(e, "tag", NULL, tag);
		emit_line(e, "saved at position %" PRIu64 "%s%s", r->cursor.next,
			tag ? ", tag " : "", tag ? tag : "");
	}
	if (edit && !r->has_acts_from)
		emit_line(e, "%s: done, the run is at position %" PRIu64, kind, r->cursor.next);
	else if (mix)
		emit_line(e, "the new mix begins at position %" PRIu64 "; the run is at %" PRIu64,
			r->acts_from, r->from);
	else if (edit)
		emit_line(
			e, "skipped from position %" PRIu64 " to %" PRIu64, r->from, r->acts_from);
	if (mix)
		put_mix(r);
	if (r->a->command == &ctl_rescale)
		put_rescale(r);
}

/* Prints the result, after all have answered or are gone. Returns an exit status. */
static int conclude(struct asked *r)
{
	char names[NAMES_BYTES];
	bool failed = false;

	for (size_t i = 0; i < r->participants; i++) {
		struct asked_rank *p = &r->participant[i];

		if (p->set & FAILED) {
			name_all(r, FAILED, p->text, names);
			failed = ctl_fail("%s: %s", names, p->text);
		}
	}
	if (failed)
		return CTL_FAILED;
	if (name_all(r, GONE, NULL, names))
		return ctl_fail("%s ended without an answer; the job's next checkpoint shows "
				"whether the request was carried out",
			names);
	if (!r->cursor.datasets)
		return ctl_fail("the job reported success without a position");
	if (name_all(r, DIFFERS, NULL, names))
		return ctl_fail(
			"the ranks are not at the same position: the cursors of %s differ from "
			"the first one received, at position %" PRIu64,
			names, r->cursor.next);
	put_result(r);
	return CTL_OK;
}

/* ---- waiting ---- */

/* Adds the participants that have not answered. */
static bool list_silent(struct asked *r)
{
	json_t *status = ctl_ask_status(&r->link, false), *s;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, s)
	{
		if (status_number(s, "request") == r->number)
			take_participant(r, status_number(s, "rank"), status_number(s, "peer"),
				status_number(s, "pid"), status_text(s, "host"));
	}
	json_decref(status);
	return status;
}

/* Cancels the request. CTL_OK: all have answered in the meantime; otherwise an exit status, and an
 * error was printed. */
static int give_up(struct asked *r, const char *reason)
{
	struct wire query = {.op = WIRE_CANCEL};
	char names[NAMES_BYTES];

	if (!list_silent(r))
		return CTL_FAILED;
	wire_set(&query, WIRE_NUMBER, r->number);
	r->link.quiet = true; /* it is an error that all have answered */
	if (!ctl_ask(&r->link, &query, WIRE_CANCELLED) && r->waiting > 0)
		return ctl_fail("%s, and the request was not cancelled: %s", reason, r->link.why);
	if (r->waiting == 0)
		return CTL_OK;
	if (wire_number(&r->link.packet.wire, WIRE_FETCHED)) {
		name_all(r, SILENT | NOTED, NULL, names);
		return ctl_fail("%s: the job has fetched the request and may still carry it out; "
				"not answered: %s",
			reason, names);
	}
	if (!name_all(r, SILENT, NULL, names))
		strcpy(names, "all sessions here have noted it, but other processes of the job");
	return ctl_fail("%s: %s did not call control(); the request is cancelled, and nothing was "
			"changed",
		reason, names);
}

/* Waits until all have answered. Returns an exit status; unless it is CTL_OK, an error was printed.
 */
static int await(struct asked *r)
{
	const struct pollfd signals = {r->signals, POLLIN, 0};
	uint64_t timeout_s = ctl_number(r->a, "timeout", 0),
		 until = ctl_clock_ms() + timeout_s * 1000;
	const struct wire *w = &r->link.packet.wire;
	char late[60];

	snprintf(late, sizeof(late), "timeout after %" PRIu64 " s", timeout_s);
	while (r->waiting > 0) {
		uint64_t now = ctl_clock_ms();
		enum ctl_heard heard =
			ctl_hear(&r->link, now < until ? (int)(until - now) : 0, signals);

		switch (heard) {
		case CTL_MESSAGE:
			if (w->op == WIRE_ANSWER && !take_answer(r, w))
				return CTL_FAILED;
			break;
		case CTL_LOST:
			return ctl_fail("the daemon at %s stopped before %" PRIu64 " of %" PRIu64
					" sessions had answered, so the request is lost; ranks "
					"that had fetched it may still carry it out: see `tokctl "
					"status --socket %s`",
				r->link.socket, r->waiting, r->sessions, r->link.socket);
		case CTL_BAD:
			return CTL_FAILED;
		case CTL_TIMEOUT:
		case CTL_OTHER:
			if (give_up(r, heard == CTL_OTHER ? "interrupted" : late) != CTL_OK)
				return CTL_FAILED;
			break;
		}
	}
	return CTL_OK;
}

/* ---- asking ---- */

/* Writes the request's arguments, a line each, to @to. Returns an exit status. */
static int write_args(const struct ctl_arguments *a, char to[WIRE_ARGS_BYTES])
{
	double weight[LIMIT_DATASETS], sum = 0;
	FILE *args = fmemopen(to, WIRE_ARGS_BYTES - 1, "w"); /* its last byte stays 0 */
	int status = args ? ctl_weights(a, 1, weight) : ctl_fail(PHRASE_MEMORY);

	for (unsigned i = 0; status == CTL_OK && strcmp(a->command->options[i].name, "run"); i++) {
		const char *name = a->command->options[i].name, *text = a->value[i].text;

		if (text && strcmp(name, "tag") == 0 && !wire_name_ok(text))
			status = ctl_usage(a->command, "--tag %s: must be " PHRASE_NAME, text);
		else if (text)
			fprintf(args, "%s %s\n", name, text);
	}
	for (int i = 1; i < a->arguments && status == CTL_OK; i++) {
		fprintf(args, "weight %.17g %s\n", weight[i - 1], a->argument[i]);
		sum += weight[i - 1];
	}
	if (status == CTL_OK && a->arguments > 1 && !(sum > 0))
		status = ctl_usage(a->command, PHRASE_WEIGHTS);
	if (args && (fflush(args) != 0 || ferror(args)) && status == CTL_OK)
		status = ctl_fail("%s: too many datasets for one request", a->command->name);
	if (args)
		fclose(args);
	return status;
}

static int request(const struct ctl_arguments *a)
{
	static struct asked r; /* what it has is not freed: the process ends */
	const char *run = ctl_text(a, "run"), *stream = a->argument[0];
	struct wire query = {.op = WIRE_REQUEST};
	const struct wire *w = &r.link.packet.wire;
	char args[WIRE_ARGS_BYTES] = "";
	int status;

	r.a = a;
	r.e.json = ctl_given(a, "json");
	if (run && !wire_name_ok(run))
		return ctl_fail("--run %s: must be " PHRASE_NAME, run);
	status = write_args(a, args);
	if (status != CTL_OK)
		return status;
	if (!ctl_choose(&r.link, a, stream, run) || !ctl_open(&r.link, r.link.socket))
		return CTL_FAILED;
	r.signals = ctl_signals(); /* so that the request can be cancelled */
	wire_set_text(&query, WIRE_STREAM, stream);
	wire_set_text(&query, WIRE_KIND, a->command->name);
	wire_set_text(&query, WIRE_ARGS, args);
	if (run)
		wire_set_text(&query, WIRE_RUN, run);
	if (!ctl_ask(&r.link, &query, WIRE_ASKED))
		return CTL_FAILED;
	if (!wire_text(w, WIRE_RUN, r.run, sizeof(r.run)))
		return ctl_fail("unexpected reply from the daemon; " PHRASE_RELEASE);
	r.link.answered = take_answer;
	r.link.context = &r;
	r.serial = r.link.serial;
	r.number = wire_number(w, WIRE_NUMBER);
	r.sessions = r.waiting = wire_number(w, WIRE_SESSIONS);
	status = await(&r);
	return emit_end(&r.e, status == CTL_OK ? conclude(&r) : status);
}

/* ---- the tables ---- */

#define COMMON                                                                                     \
	{OPTION_TEXT("run", "RUN", "the job's run, if several read the stream")},                  \
		{OPTION_NUMBER("timeout", "SECONDS", 1, 1000000,                                   \
			 "how long to wait for the ranks' answers"),                               \
			.preset = "60"},                                                           \
		{CTL_SOCKET_OPTION}, {CTL_CONFIG_OPTION},                                          \
	{                                                                                          \
		CTL_JSON_OPTION                                                                    \
	}
#define TAGGED                                                                                     \
	{OPTION_TEXT("tag", "TAG",                                                                 \
		"name under which the daemon also saves the cursor, in its state_dir")},           \
		COMMON

#define VERB(verb, table) .name = verb, OPTIONS_ARE(table), .run = request

/* The options before --run are sent to the daemon, under their names. */
static const struct ctl_option mix_options[] = {
	{OPTION_NUMBER("at", "POSITION", 0, UINT64_MAX - 1,
		"first sample of the new mix, a multiple of 1024; default: the earliest possible")},
	COMMON};
static const struct ctl_option skip_options[] = {
	{OPTION_NUMBER(
		 "samples", "N", 1, UINT64_MAX, "number of samples to skip; they are never served"),
		.required = true},
	COMMON};
static const struct ctl_option save_options[] = {TAGGED};
static const struct ctl_option rescale_options[] = {
	{OPTION_NUMBER("world", "W", 1, LIMIT_WORLD, "number of ranks of the next job"),
		.required = true},
	{OPTION_NUMBER("micro", "B", 1, LIMIT_MICRO_BATCH,
		"rows per batch of the next job; default: unchanged")},
	TAGGED};

const struct ctl_command ctl_mix = {VERB("mix", mix_options),
	.head = "A running job:", .arguments = "STREAM DATASET=WEIGHT...",
	.help = "change a running job's mix; weights are relative, and 0 if not named"};
const struct ctl_command ctl_skip = {VERB("skip", skip_options), .arguments = "STREAM",
	.help = "skip the next samples of a running job"};
const struct ctl_command ctl_checkpoint = {VERB("checkpoint", save_options), .arguments = "STREAM",
	.help = "have a running job save a checkpoint"};
const struct ctl_command ctl_drain = {VERB("drain", save_options), .arguments = "STREAM",
	.help = "have a running job save a checkpoint and exit"};
const struct ctl_command ctl_rescale = {VERB("rescale", rescale_options), .arguments = "STREAM",
	.help = "have a running job save and exit, to be started with another number of ranks"};
