/*
 * tokctl mix, skip, checkpoint, drain, rescale: an operator's request to a running job. The daemon
 * shows it to the job's sessions on this node, all ranks of the job carry it out at the same step,
 * and each session's answer comes back. On a timeout or an interruption the request is cancelled,
 * unless a rank has already fetched it.
 */
#include "client/ctl/online/request.h"
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "daemon/config/config.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* AT to MICRO are numbers, sent under the names of the options. */
enum { AT, SAMPLES, WORLD, MICRO, TAG, RUN, TIMEOUT, SOCKET, CONFIG, JSON, OPTIONS };

enum {
	TIMEOUT_S = 60,
	TIMEOUT_MOST_S = 1000000,
};

/* ---- the arguments ---- */

/* Adds a line to the request's arguments. False: they are too long. */
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

/* Reads "DATASET=WEIGHT", where the name may contain '='. */
static int read_weight(
	struct request *r, const struct ctl_command *c, const char *argument, double *sum)
{
	const char *equals = strrchr(argument, '=');
	char name[LIMIT_NAME_BYTES + 1];
	double weight;

	if (!equals || equals == argument || (size_t)(equals - argument) >= sizeof(name))
		return ctl_usage(c, "'%s': must be DATASET=WEIGHT", argument);
	memcpy(name, argument, (size_t)(equals - argument));
	name[equals - argument] = 0;
	if (!wire_label_ok(name))
		return ctl_usage(c, "'%s': must be " PHRASE_LABEL, name);
	if (!ctl_parse_decimal(equals + 1, &weight))
		return ctl_usage(c, "%s: weight '%s': must be " PHRASE_WEIGHT, name, equals + 1);
	*sum += weight;
	if (!put_line(r, "weight %.17g %s\n", weight, name))
		return ctl_fail("%s: too many datasets for one request", r->kind);
	return CTL_OK;
}

static int read_mix(struct request *r, const struct ctl_arguments *a)
{
	double sum = 0;
	int status = CTL_OK;

	for (int i = 1; i < a->arguments && status == CTL_OK; i++)
		status = read_weight(r, a->command, a->argument[i], &sum);
	if (status == CTL_OK && !(sum > 0))
		return ctl_usage(a->command, PHRASE_WEIGHTS);
	return status;
}

static void put_number(struct request *r, const struct ctl_arguments *a, unsigned option)
{
	if (ctl_given(a, option))
		put_line(r, "%s %" PRIu64 "\n", a->command->options[option].name,
			ctl_number(a, option, 0));
}

static int read_arguments(struct request *r, const struct ctl_arguments *a)
{
	r->kind = a->command->name;
	r->stream = a->argument[0];
	r->run = ctl_text(a, RUN);
	r->json = ctl_given(a, JSON);
	r->timeout_s = ctl_number(a, TIMEOUT, TIMEOUT_S);
	r->world = ctl_number(a, WORLD, 0);
	r->micro_batch = ctl_number(a, MICRO, 0);
	r->tag = ctl_text(a, TAG);
	for (unsigned option = AT; option <= MICRO; option++)
		put_number(r, a, option);
	if (r->run && !wire_name_ok(r->run))
		return ctl_fail("--run %s: must be " PHRASE_NAME, r->run);
	if (r->tag && !wire_name_ok(r->tag))
		return ctl_usage(a->command, "--tag %s: must be " PHRASE_NAME, r->tag);
	if (r->tag)
		put_line(r, "tag %s\n", r->tag);
	return a->arguments > 1 ? read_mix(r, a) : CTL_OK;
}

/* With -c, checks by the config that the mix can change, before asking the daemon. */
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
			status = ctl_fail("mix: " PHRASE_FINITE, r->stream);
	config_free(config);
	return status;
}

/* ---- waiting ---- */

static int lost(const struct request *r)
{
	return ctl_fail(
		"the daemon at %s stopped before %" PRIu64 " of %" PRIu64
		" sessions had answered, so the request is lost; ranks that had fetched it may "
		"still carry it out: see `tokctl status --socket %s`",
		r->link.socket, r->waiting, r->sessions, r->link.socket);
}

static void take_any(void *context, const struct wire *w)
{
	struct request *r = context;

	if (w->op == WIRE_ANSWER)
		request_answered(r, w);
}

/* Adds the participants that have not answered. */
static bool list_unseen(struct request *r)
{
	json_t *status = ctl_ask_status(&r->link, false, take_any, r), *s;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, s)
	{
		struct wire w = {.op = WIRE_ANSWER};

		wire_set(&w, WIRE_RANK, status_number(s, "rank"));
		wire_set(&w, WIRE_PEER, status_number(s, "peer"));
		wire_set(&w, WIRE_PID, status_number(s, "pid"));
		wire_set(&w, WIRE_WORLD, status_number(s, "world"));
		wire_set(&w, WIRE_MICRO, status_number(s, "micro"));
		wire_set_text(&w, WIRE_HOST, status_text(s, "host"));
		if (status_number(s, "request") == r->number)
			participant_seen(r, &w);
	}
	json_decref(status);
	return status;
}

/* Cancels the request. CTL_OK: all have answered in the meantime; otherwise an exit status, and an
 * error was printed. */
static int give_up(struct request *r, const char *reason)
{
	const struct wire *w = &r->link.packet.wire;
	struct wire query = {.op = WIRE_CANCEL};
	char names[REQUEST_NAMES_BYTES], others[REQUEST_NAMES_BYTES];

	if (!list_unseen(r))
		return CTL_FAILED;
	wire_set(&query, WIRE_NUMBER, r->number);
	if (!ctl_exchange(&r->link, &query, WIRE_CANCELLED, take_any, r))
		return CTL_FAILED;
	if (r->waiting == 0)
		return CTL_OK;
	if (w->op != WIRE_CANCELLED)
		return ctl_fail("%s, and the daemon did not cancel the request", reason);
	if (wire_number(w, WIRE_FETCHED)) {
		participants_name(r, UNSEEN | NOTED, names, sizeof(names));
		participants_name(r, ANSWERED, others, sizeof(others));
		return ctl_fail("%s: the job has fetched the request and may still carry it out; "
				"not answered: %s; "
				"answered: %s",
			reason, names, others[0] ? others : "none");
	}
	if (participants_name(r, UNSEEN, names, sizeof(names)))
		return ctl_fail("%s: %s did not call control(); the request is cancelled, and "
				"nothing was changed",
			reason, names);
	return ctl_fail("%s: all sessions here have seen the request, but other processes of the "
			"job did not call control(); the request is cancelled, and nothing was "
			"changed",
		reason);
}

/* Waits until all have answered. Returns an exit status; unless it is CTL_OK, an error was printed.
 */
static int await(struct request *r)
{
	uint64_t until = ctl_clock_ms() + r->timeout_s * 1000;
	const struct wire *w = &r->link.packet.wire;
	char late[60];

	snprintf(late, sizeof(late), "timeout after %" PRIu64 " s", r->timeout_s);
	while (r->waiting > 0) {
		uint64_t now = ctl_clock_ms();
		enum ctl_heard heard = ctl_hear(&r->link, now < until ? (int)(until - now) : 0,
			(struct pollfd){r->signals, POLLIN, 0});

		switch (heard) {
		case CTL_MESSAGE:
			if (w->op == WIRE_ANSWER && !request_answered(r, w))
				return CTL_FAILED;
			break;
		case CTL_LOST:
			return lost(r);
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

static int ask(struct request *r)
{
	struct wire query = {.op = WIRE_REQUEST};
	const struct wire *w = &r->link.packet.wire;
	struct fault fault;

	wire_set_text(&query, WIRE_STREAM, r->stream);
	wire_set_text(&query, WIRE_KIND, r->kind);
	wire_set_text(&query, WIRE_ARGS, r->args);
	if (r->run)
		wire_set_text(&query, WIRE_RUN, r->run);
	if (!ctl_ask(&r->link, &query, WIRE_ASKED, NULL, NULL))
		return CTL_FAILED;
	if (!wire_text(w, WIRE_RUN, r->run_name, sizeof(r->run_name)))
		return ctl_fail("unexpected reply from the daemon; " PHRASE_RELEASE);
	r->serial = r->link.serial;
	r->number = wire_number(w, WIRE_NUMBER);
	r->sessions = r->waiting = wire_number(w, WIRE_SESSIONS);
	r->has_before = cursor_decode(
		&r->before, wire_bytes(w, WIRE_CURSOR).at, wire_bytes(w, WIRE_CURSOR).n, &fault);

	int status = await(r);

	return status == CTL_OK ? request_conclude(r) : ctl_finish(&r->out, status);
}

static int request(struct request *r, const char *socket, const char *config)
{
	int status = check_config(r, config);

	if (status != CTL_OK)
		return status;
	if (!ctl_connect_wanted(&r->link, &(struct ctl_wanted){socket, config, r->stream, r->run}))
		return CTL_FAILED;
	r->signals = ctl_signals(); /* so that the request can be cancelled */
	status = ask(r);
	close(r->signals);
	ctl_disconnect(&r->link);
	cursor_free(&r->before);
	cursor_free(&r->cursor);
	free(r->participant);
	return status;
}

static int run(const struct ctl_arguments *a)
{
	struct request *r = calloc(1, sizeof(*r));
	int status;

	if (!r)
		return ctl_fail(PHRASE_MEMORY);
	status = read_arguments(r, a);
	if (status == CTL_OK)
		status = request(r, ctl_text(a, SOCKET), ctl_text(a, CONFIG));
	free(r);
	return status;
}

/* ---- the tables ---- */

#define COMMON_OPTIONS                                                                             \
	[RUN] = {.name = "run",                                                                    \
		.value = "RUN",                                                                    \
		.help = "run to change, if the stream has several"},                               \
	[TIMEOUT] = {.name = "timeout",                                                            \
		.kind = CTL_NUMBER,                                                                \
		.value = "SECONDS",                                                                \
		.least = 1,                                                                        \
		.most = TIMEOUT_MOST_S,                                                            \
		.preset = "60",                                                                    \
		.help = "how long to wait for the ranks' answers"},                                \
	[SOCKET] = CTL_SOCKET_OPTION, [CONFIG] = CTL_CONFIG_OPTION, [JSON] = CTL_JSON_OPTION
#define REQUEST_ABOUT                                                                              \
	"All ranks of the job carry out the request at the same step, in control(), which a "      \
	"trainer calls at every step. tokctl prints the answers of this node's sessions. If not "  \
	"all ranks call control() within --timeout, or tokctl is interrupted before one has "      \
	"fetched the request, it is cancelled and nothing changes. A save is carried out once "    \
	"all "                                                                                     \
	"loops have called done(); a rank whose loop went on without it is named. The exit "       \
	"status is 0 only if the request was carried out."
#define SEE_MIX "All ranks carry out the request at the same step: see tokctl mix."
#define TAG_OPTION                                                                                 \
	{                                                                                          \
		.name = "tag", .value = "TAG",                                                     \
		.help = "name under which the daemon also saves the cursor, in its state_dir"      \
	}

static const struct ctl_option mix_options[OPTIONS] = {
	COMMON_OPTIONS,
	[AT] = {.name = "at",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX - 1,
		.help = "first sample of the new mix, a multiple of 1024; default: the earliest "
			"possible"},
};
static const struct ctl_option skip_options[OPTIONS] = {
	COMMON_OPTIONS,
	[SAMPLES] = {.name = "samples",
		.kind = CTL_NUMBER,
		.required = true,
		.value = "N",
		.least = 1,
		.most = UINT64_MAX,
		.help = "number of samples to skip; they are never served"},
};
static const struct ctl_option save_options[OPTIONS] = {COMMON_OPTIONS, [TAG] = TAG_OPTION};
static const struct ctl_option rescale_options[OPTIONS] = {
	COMMON_OPTIONS,
	[TAG] = TAG_OPTION,
	[WORLD] = {.name = "world",
		.kind = CTL_NUMBER,
		.required = true,
		.value = "W",
		.least = 1,
		.most = LIMIT_WORLD,
		.help = "number of ranks of the next job"},
	[MICRO] = {.name = "micro",
		.kind = CTL_NUMBER,
		.value = "B",
		.least = 1,
		.most = LIMIT_MICRO_BATCH,
		.help = "rows per batch of the next job; default: unchanged"},
};

const struct ctl_command ctl_mix = {
	.name = "mix",
	.arguments = "STREAM DATASET=WEIGHT...",
	.least = 2,
	.most = CTL_ANY,
	.help = "change the mix of a running job",
	.about = "Gives the datasets new weights, relative to each other, from --at on. Datasets "
		 "that are not named get weight 0. It replaces all pending mixes. A finite stream "
		 "keeps its mix.\n\n" REQUEST_ABOUT,
	.examples = CTL_EXAMPLES({"use half web and half code from the earliest position on",
		"tokctl mix train web=0.5 code=0.5 -c tokend.yaml"}),
	.options = mix_options,
	.count = OPTIONS,
	.run = run,
};

const struct ctl_command ctl_skip = {
	.name = "skip",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "skip the next samples of a running job",
	.about = "Use it to pass over data on which the loss diverges. The skipped samples are "
		 "never served; `tokctl verify` reports them as skipped. " SEE_MIX,
	.examples = CTL_EXAMPLES(
		{"skip 1024 samples", "tokctl skip train --samples 1024 -c tokend.yaml"}),
	.options = skip_options,
	.count = OPTIONS,
	.run = run,
};

const struct ctl_command ctl_checkpoint = {
	.name = "checkpoint",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "let a running job save a checkpoint",
	.about = "The job saves a checkpoint as it does at other times, and goes on. " SEE_MIX,
	.examples = CTL_EXAMPLES({"save, with the cursor also in the daemon's state_dir",
		"tokctl checkpoint train --tag before-upgrade -c tokend.yaml"}),
	.options = save_options,
	.count = OPTIONS,
	.run = run,
};

const struct ctl_command ctl_drain = {
	.name = "drain",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "let a running job save a checkpoint and exit",
	.about = "The job saves a checkpoint as it does at other times, and exits. " SEE_MIX,
	.examples = CTL_EXAMPLES(
		{"stop a job before maintenance", "tokctl drain train -c tokend.yaml"}),
	.options = save_options,
	.count = OPTIONS,
	.run = run,
};

const struct ctl_command ctl_rescale = {
	.name = "rescale",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "let a running job save and exit, to go on with another number of ranks",
	.about = "Prints which samples each rank of the next job begins with. Start that job "
		 "from the checkpoint: no sample is repeated or lost. " SEE_MIX,
	.examples = CTL_EXAMPLES(
		{"go on with 2 ranks", "tokctl rescale train --world 2 -c tokend.yaml"}),
	.options = rescale_options,
	.count = OPTIONS,
	.run = run,
};
