/*
 * tokctl mix, skip, checkpoint, drain, rescale: an operator's word to a running job. The daemon
 * shows it to the job's sessions here, the job carries it out on all ranks at one step, and each
 * session's answer comes back. Until a rank has fetched the request it can be taken back, and is,
 * when time is up or we are interrupted.
 */
#include "client/ctl/online/request.h"
#include "client/ctl/common/arguments.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "daemon/config/config.h"

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
};

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

static void take_any(void *context, const struct wire *w)
{
	struct request *r = context;

	if (w->op == WIRE_ANSWER)
		request_answered(r, w);
	else if (w->op == WIRE_SESSION && wire_number(w, WIRE_REQUEST_KEY) == r->number)
		participant_seen(r,
			w); /* it has not answered; whether it has seen it is known from its note */
}

/* Takes it back. 1: it is over, all have answered meanwhile; else an exit status after the line is
 * said. */
static int give_up(struct request *r, const char *why)
{
	struct wire query = {.op = WIRE_CANCEL};
	char names[REQUEST_NAMES_BYTES], others[REQUEST_NAMES_BYTES];

	if (!ctl_status_list(r->fd, &r->packet, take_any, r))
		return CTL_FAILED;
	wire_set(&query, WIRE_NUMBER, r->number);

	int error = link_send(r->fd, &query, r->packet.bytes);

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
		participants_name(r, UNSEEN | NOTED, names, sizeof(names));
		participants_name(r, ANSWERED, others, sizeof(others));
		return ctl_fail("%s: the job has fetched the request and may still carry it out; "
				"not answered: %s; "
				"answered: %s",
			why, names, others[0] ? others : "none");
	}
	if (participants_name(r, UNSEEN, names, sizeof(names)))
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
		if (r->packet.wire.op == WIRE_ANSWER && !request_answered(r, &r->packet.wire))
			return CTL_FAILED;
	}
	return CTL_OK;
}

/* ---- asking ---- */

static int ask(struct request *r)
{
	struct wire query = {.op = WIRE_REQUEST};
	const struct wire *w = &r->packet.wire;

	wire_set_text(&query, WIRE_STREAM, r->stream);
	wire_set_text(&query, WIRE_KIND, r->kind);
	wire_set_text(&query, WIRE_ARGS, r->args);
	if (r->run)
		wire_set_text(&query, WIRE_RUN, r->run);
	if (!ctl_ask(r->fd, &query, &r->packet))
		return CTL_FAILED;
	if (w->op != WIRE_ASKED || !wire_text(w, WIRE_RUN, r->run_name, sizeof(r->run_name)))
		return ctl_fail("not a daemon that we understand: is it of another version?");
	r->number = wire_number(w, WIRE_NUMBER);
	r->sessions = r->waiting = wire_number(w, WIRE_SESSIONS);

	int status = await(r);

	return status == CTL_OK ? request_conclude(r) : ctl_finish(&r->out, status);
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
	free(r->participant);
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
