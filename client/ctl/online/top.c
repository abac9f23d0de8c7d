/* tokctl top: prints the sessions repeatedly, with the rate at which each releases its batches. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

struct seen {
	/* Of the session with this number. If the pid differs, or fewer are released, it is a new
	 * one. */
	uint64_t pid, released, ms;
};

struct top {
	struct ctl_out out;
	struct ctl_link link;
	struct seen before[LIMIT_SESSIONS];
	uint64_t now_ms;
	bool headed;
	int signals; /* readable: a signal to end has arrived */
};

/* Tokens per second since the last status; 0 the first time. */
static double rate(struct top *t, const struct wire *w)
{
	uint64_t id = wire_number(w, WIRE_ID), released = wire_number(w, WIRE_RELEASED);
	uint64_t pid = wire_number(w, WIRE_PID);
	double tokens = 0;

	if (id >= LIMIT_SESSIONS)
		return 0;

	struct seen *s = &t->before[id];

	if (s->ms && s->pid == pid && released >= s->released && t->now_ms > s->ms)
		tokens = (double)(released - s->released) * (double)wire_number(w, WIRE_MICRO) *
			 (double)wire_number(w, WIRE_SEQ_LEN) * 1000 / (double)(t->now_ms - s->ms);
	*s = (struct seen){pid, released, t->now_ms};
	return tokens;
}

static void put_each(void *context, const struct wire *w)
{
	struct top *t = context;
	struct wire_bytes stream = wire_bytes(w, WIRE_STREAM), run = wire_bytes(w, WIRE_RUN);
	uint64_t ready = wire_number(w, WIRE_PUBLISHED) - wire_number(w, WIRE_RELEASED);
	char line[400], full[40] = "";

	if (w->op != WIRE_SESSION)
		return;
	if (!t->headed)
		ctl_put(&t->out,
			"STREAM       RUN               RANK of WORLD     POSITION     TOKENS/S  "
			"READY      WAITS\n");
	t->headed = true;
	if (wire_number(w, WIRE_STALL_MS) > 0)
		snprintf(full, sizeof(full), "tokend %" PRIu64 " s",
			wire_number(w, WIRE_STALL_MS) / 1000);
	snprintf(line, sizeof(line),
		"%-12.*s %-16.*s %5" PRIu64 " of %-5" PRIu64 " %12" PRIu64 " %12.0f %3" PRIu64
		" of %-3" PRIu64 "  %s%s\n",
		(int)stream.n, stream.at, (int)run.n, run.at, wire_number(w, WIRE_RANK),
		wire_number(w, WIRE_WORLD), wire_number(w, WIRE_POSITION), rate(t, w), ready,
		wire_number(w, WIRE_SLOTS), ready == 0 ? "trainer" : full,
		wire_number(w, WIRE_REQUEST_KEY) ? ", request open" : "");
	ctl_put(&t->out, line);
}

static bool show(struct top *t, bool screen)
{
	const struct wire *w = &t->link.packet.wire;
	char line[300];

	t->now_ms = ctl_clock_ms();
	t->headed = false;
	if (screen)
		ctl_put(&t->out, "\033[H\033[J");
	if (!ctl_status_list(&t->link, put_each, t))
		return false;
	snprintf(line, sizeof(line),
		"tokend at %.100s, up %" PRIu64 " s, %" PRIu64 " session%s, %" PRIu64 " of %" PRIu64
		" MiB%s\n",
		t->link.socket, wire_number(w, WIRE_UPTIME_MS) / 1000,
		wire_number(w, WIRE_SESSIONS), wire_number(w, WIRE_SESSIONS) == 1 ? "" : "s",
		wire_number(w, WIRE_MEMORY_BYTES) >> 20, wire_number(w, WIRE_LIMIT_BYTES) >> 20,
		screen ? "; q quits" : "");
	ctl_put(&t->out, line);
	return ctl_finish(&t->out, CTL_OK) == CTL_OK;
}

/* Waits until @until (ctl_clock_ms()). False: the user wants to quit. */
static bool rest(const struct top *t, uint64_t until, bool keys)
{
	struct pollfd p[] = {{t->signals, POLLIN, 0}, {keys ? STDIN_FILENO : -1, POLLIN, 0}};

	for (;;) {
		uint64_t now = ctl_clock_ms();
		char key;

		if (poll(p, 2, now < until ? (int)(until - now) : 0) > 0) {
			if (p[0].revents)
				return false;
			if (read(STDIN_FILENO, &key, 1) != 1)
				p[1].fd = -1;
			else if (key == 'q')
				return false;
		}
		if (now >= until)
			return true;
	}
}

static bool loop(struct top *t, uint64_t interval_ms, uint64_t count, bool screen)
{
	bool keys = screen && isatty(STDIN_FILENO);
	uint64_t next = ctl_clock_ms();

	for (uint64_t n = 0;; n++) {
		if (!show(t, screen))
			return false;
		next += interval_ms;
		if ((count > 0 && n + 1 == count) || !rest(t, next, keys))
			return true;
	}
}

/* Runs the loop with a terminal that passes keys one by one and does not echo them. */
static bool with_keys(struct top *t, uint64_t interval_ms, uint64_t count)
{
	bool screen = isatty(STDOUT_FILENO);
	struct termios usual, raw;
	bool keys = screen && tcgetattr(STDIN_FILENO, &usual) == 0;

	if (keys) {
		raw = usual;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}

	bool ok = loop(t, interval_ms, count, screen);

	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &usual);
	return ok;
}

enum { SOCKET, CONFIG, INTERVAL, COUNT };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[INTERVAL] = {.name = "interval",
		.kind = CTL_DECIMAL,
		.value = "SECONDS",
		.low = 0.01,
		.high = 86400,
		.preset = "1",
		.help = "time between updates"},
	[COUNT] = {.name = "count",
		.kind = CTL_NUMBER,
		.value = "N",
		.least = 1,
		.most = UINT64_MAX,
		.help = "number of updates; default: until q or a signal"},
};

static int top(const struct ctl_arguments *a)
{
	double seconds = a->value[INTERVAL].decimal;
	struct top *t = calloc(1, sizeof(*t));
	bool ok = false;

	if (!t)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(&t->link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		t->signals = ctl_signals();
		ok = with_keys(t, (uint64_t)(seconds * 1000), ctl_number(a, COUNT, 0));
		close(t->signals);
		ctl_disconnect(&t->link);
	}
	free(t);
	return ok ? CTL_OK : CTL_FAILED;
}

const struct ctl_command ctl_top = {
	.name = "top",
	.help = "print the sessions of a running daemon repeatedly, with their rates; q quits",
	.about = "WAITS tells who waits: trainer, if no batch is ready; tokend, with the time so "
		 "far, if the ring has been full.",
	.examples = CTL_EXAMPLES(
		{"three updates, one per second", "tokctl top -c tokend.yaml --count 3"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = top,
};
