/* tokctl top: the sessions, with the rate at which each releases its batches, again and again. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "client/ctl/online/top_list.h"
#include "client/ctl/online/top_screen.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STORES = 16 }; /* lines about stores */

struct top {
	struct ctl_out out;
	struct ctl_link link;
	struct top_list list;
	char store[STORES][STORE_LINE_BYTES];
	unsigned stores;
	char about[200]; /* the daemon */
};

static void add_store(void *context, const char *line)
{
	struct top *t = context;

	if (t->stores < STORES)
		snprintf(t->store[t->stores++], STORE_LINE_BYTES, "%s", line);
}

/* False after an error: the list is that of the last update. */
static bool update(struct top *t)
{
	json_t *status = ctl_ask_status(&t->link, false, NULL, NULL), *session,
	       *daemon = json_object_get(status, "daemon");
	size_t i;

	if (!status)
		return false;
	top_list_begin(&t->list, ctl_clock_ms());
	json_array_foreach(json_object_get(status, "sessions"), i, session)
		top_list_add(&t->list, session);
	top_list_end(&t->list);
	t->stores = 0;
	store_lines(status, add_store, t);
	/* Everything but the socket. */
	snprintf(t->about, sizeof(t->about),
		"up %" PRIu64 " s, %" PRIu64 " session%s, %" PRIu64 " of %" PRIu64 " MiB",
		status_number(daemon, "uptime_ms") / 1000, status_number(daemon, "sessions"),
		status_number(daemon, "sessions") == 1 ? "" : "s",
		status_number(daemon, "memory_bytes") >> 20,
		status_number(daemon, "limit_bytes") >> 20);
	json_decref(status);
	return true;
}

/* ---- lines of text ---- */

static void put_row(struct ctl_out *out, const struct top_row *row)
{
	char line[400], full[40] = "";

	if (row->store_ms > 0)
		snprintf(full, sizeof(full), "store %" PRIu64 " s", row->store_ms / 1000);
	else if (row->ready == 0)
		snprintf(full, sizeof(full), "trainer");
	else if (row->full_ms > 0)
		snprintf(full, sizeof(full), "tokend %" PRIu64 " s", row->full_ms / 1000);
	snprintf(line, sizeof(line),
		"%-12s %-16s %5" PRIu64 " of %-5" PRIu64 " %12" PRIu64 " %12.0f %3" PRIu64
		" of %-3" PRIu64 "  %s%s\n",
		row->stream, row->run, row->rank, row->world, row->position, row->rate, row->ready,
		row->slots, full, row->request ? ", request open" : "");
	ctl_put(out, line);
}

static bool print(struct top *t)
{
	char line[400];

	if (!update(t))
		return false;
	if (t->list.n > 0)
		ctl_put(&t->out,
			"STREAM       RUN               RANK of WORLD     POSITION     TOKENS/S  "
			"READY      WAITS\n");
	for (unsigned i = 0; i < t->list.n; i++)
		put_row(&t->out, &t->list.row[t->list.order[i]]);
	for (unsigned i = 0; i < t->stores; i++) {
		ctl_put(&t->out, t->store[i]);
		ctl_put(&t->out, "\n");
	}
	snprintf(line, sizeof(line), "tokend at %.100s, %s\n", t->link.socket, t->about);
	ctl_put(&t->out, line);
	return ctl_finish(&t->out, CTL_OK) == CTL_OK;
}

/* Waits until @until (ctl_clock_ms()). False: a signal to end. */
static bool rest(int signals, uint64_t until)
{
	struct pollfd p = {signals, POLLIN, 0};
	uint64_t now;

	do {
		now = ctl_clock_ms();
		if (poll(&p, 1, now < until ? (int)(until - now) : 0) > 0)
			return false;
	} while (now < until);
	return true;
}

/* The time of the update after that of @time. Updates that are late are not made up for. */
static uint64_t next_time(uint64_t time, uint64_t interval_ms)
{
	uint64_t now = ctl_clock_ms();

	return time + interval_ms > now ? time + interval_ms : now;
}

static bool print_all(struct top *t, uint64_t interval_ms, uint64_t count)
{
	int signals = ctl_signals();
	uint64_t next = ctl_clock_ms();
	bool ok = true;

	for (uint64_t n = 1; (ok = print(t)) && n != count; n++)
		if (!rest(signals, next = next_time(next, interval_ms)))
			break;
	close(signals);
	return ok;
}

/* ---- a terminal ---- */

/* Sets @line to what is shown above the sessions: the daemon, or why it is not there. Connects to
 * the same socket again: another daemon may serve at the places that are searched. */
static bool refresh(struct top *t, const char *socket, char *line, size_t bytes)
{
	if ((t->link.fd >= 0 || ctl_connect(&t->link, socket, NULL)) && update(t)) {
		/* The socket is last: a narrow terminal cuts its path. */
		snprintf(line, bytes, "tokend %s, at %s", t->about, socket);
		return true;
	}
	ctl_disconnect(&t->link);
	top_list_pause(&t->list);
	return false;
}

static void show_all(
	struct top *t, struct top_screen *screen, const char *socket, uint64_t interval_ms)
{
	char line[LIMIT_TEXT_BYTES];
	struct top_title title = {.about = line, .store = t->store};
	uint64_t next = ctl_clock_ms();

	ctl_keep_errors(line, sizeof(line));
	do {
		title.lost = !refresh(t, socket, line, sizeof(line));
		title.stores = t->stores;
		next = next_time(next, interval_ms);
	} while (top_screen_wait(screen, &t->list, &title, next));
	ctl_keep_errors(NULL, 0);
}

static bool run(struct top *t, uint64_t interval_ms, uint64_t count)
{
	struct top_screen *screen = count == 0 ? top_screen_open() : NULL;
	char *socket;

	if (!screen)
		return print_all(t, interval_ms, count);
	socket = strdup(t->link.socket);
	if (socket)
		show_all(t, screen, socket, interval_ms);
	top_screen_close(screen);
	free(socket);
	return socket || ctl_fail(PHRASE_MEMORY) == CTL_OK;
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
		.help = "number of updates, printed as text; default: until q or a signal"},
};

static int top(const struct ctl_arguments *a)
{
	double seconds = a->value[INTERVAL].decimal;
	struct top *t = calloc(1, sizeof(*t));
	bool ok = false;

	if (!t)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(&t->link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		ok = run(t, (uint64_t)(seconds * 1000), ctl_number(a, COUNT, 0));
		ctl_disconnect(&t->link);
	}
	free(t);
	return ok ? CTL_OK : CTL_FAILED;
}

const struct ctl_command ctl_top = {
	.name = "top",
	.help = "show the sessions of a running daemon, with their rates; q quits",
	.about = "WAITS tells who waits: trainer, if no batch is ready; tokend, with the time so "
		 "far, if the ring has been full; store, with the time so far, if a read waits for "
		 "an "
		 "object store. A line per store and one for the cache follow the sessions.\n\n"
		 "On a terminal, the left and right arrows (or < and >) choose the column to sort "
		 "by, r reverses the order, and the other arrows scroll. A sparkline shows the "
		 "rates of the last updates. If the daemon stops, the last sessions stay on the "
		 "screen until it is back. Otherwise, and with --count, each update is printed as "
		 "text, and the exit status is 1 once the daemon stops.",
	.examples = CTL_EXAMPLES(
		{"three updates, one per second", "tokctl top -c tokend.yaml --count 3"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = top,
};
