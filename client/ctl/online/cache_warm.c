/*
 * tokctl cache warm: a session that reads a stream without training on it. So pieces are fetched in
 * the stream's order, as by a trainer, and the daemon needs no other way to fetch them. It ends
 * before the cache is full, because from then on pieces are evicted for later ones.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/progress.h"
#include "client/ctl/online/cache_ask.h"
#include "client/ctl/online/commands.h"
#include "client/lib/tokend.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOCKET, CONFIG, FROM, TO };

enum { ROWS = 16, LOOK_NS = 250 * 1000 * 1000, FULL_PERCENT = 95 };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[FROM] = {.name = "from",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX - 1,
		.preset = "0",
		.help = "position of the first sample"},
	[TO] = {.name = "to",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX - 1,
		.help = "stop at this position; default: when all pieces of the stream are there"},
};

/* What the cache holds of the stream's datasets. */
struct cached {
	uint64_t pieces, all; /* of datasets that are read in pieces */
	uint64_t bytes, misses, evictions, used, size;
};

struct warm {
	struct ctl_link link;
	struct tokend *t;
	const char *stream;
	int signals;
	bool interrupted;
	uint64_t to, looked_ns;
	struct cached before, now;
	struct ctl_progress progress;
};

static uint64_t number(const json_t *object, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(object, name));
}

static bool look(struct warm *w)
{
	json_t *all = ctl_cache_ask(&w->link, "ls", NULL), *cache, *row;
	size_t i;

	if (!all)
		return false;
	cache = json_object_get(all, "cache");
	w->now = (struct cached){.misses = number(cache, "misses"),
		.evictions = number(cache, "evictions"),
		.used = number(cache, "used_bytes"),
		.size = number(cache, "size_bytes")};
	json_array_foreach(json_object_get(all, "datasets"), i, row)
	{
		const char *stream = json_string_value(json_object_get(row, "stream"));

		if (!number(row, "all") || !stream || strcmp(stream, w->stream) != 0)
			continue;
		w->now.pieces += number(row, "pieces");
		w->now.all += number(row, "all");
		w->now.bytes += number(row, "bytes");
	}
	json_decref(all);
	w->looked_ns = ctl_clock_ns();
	return true;
}

/* Why to stop; NULL: go on. */
static const char *end(const struct warm *w)
{
	if (w->interrupted)
		return "interrupted";
	if (tokend_taken(w->t) >= w->to)
		return "reached";
	if (w->now.pieces >= w->now.all)
		return "all pieces are there";
	if (w->now.evictions > w->before.evictions ||
		w->now.used > w->now.size / 100 * FULL_PERCENT)
		return "the cache is full";
	return NULL;
}

/* NULL after an error. */
static const char *read_until_end(struct warm *w)
{
	uint64_t pieces = w->now.pieces;
	struct tokend_batch batch;
	const char *why;

	while (!(why = end(w))) {
		int got = tokend_next(w->t, &batch);

		if (got == TOKEND_EAGAIN)
			continue;
		if (got < 0)
			ctl_fail("%s", tokend_why(w->t));
		if (got <= 0)
			return got == 0 ? "the stream ends there" : NULL;
		tokend_release(w->t, &batch);
		if (ctl_clock_ns() - w->looked_ns < LOOK_NS)
			continue;
		if (!look(w))
			return NULL;
		if (w->now.pieces > pieces)
			ctl_progress_add(&w->progress, w->now.pieces - pieces);
		pieces = w->now.pieces;
	}
	return why;
}

static int run(struct warm *w)
{
	const char *why;

	if (!look(w))
		return CTL_FAILED;
	if (w->now.all == 0)
		return ctl_fail("stream %s: none of its datasets is read in pieces; `tokend "
				"--check` says why",
			w->stream);
	ctl_progress_count(&w->progress, "warming", "pieces", w->now.all - w->now.pieces);
	why = read_until_end(w);
	ctl_progress_end(&w->progress);
	if (!why || !look(w))
		return CTL_FAILED;
	printf("%" PRIu64 " of %" PRIu64 " pieces (%.3f GB) are in the cache, %" PRIu64
	       " of them fetched now; position %" PRIu64 ": %s\n",
		w->now.pieces, w->now.all, (double)w->now.bytes / 1e9,
		w->now.misses - w->before.misses, tokend_taken(w->t), why);
	return w->interrupted ? CTL_FAILED : CTL_OK;
}

/* Ends a wait of tokend_next() after a signal. */
static int idle(void *context)
{
	struct warm *w = context;
	struct pollfd p = {.fd = w->signals, .events = POLLIN};

	w->interrupted |= poll(&p, 1, 0) > 0;
	return w->interrupted;
}

static int attach(struct warm *w, const struct ctl_arguments *a)
{
	const struct tokend_options session = {.size = sizeof(session),
		.socket = w->link.socket,
		.stream = w->stream,
		.run = "tokctl-warm",
		.world = 1,
		.micro_batch = ROWS,
		.position = ctl_number(a, FROM, 0),
		.start_at_position = 1,
		.idle = idle,
		.context = w};
	char why[1500];
	int status;

	w->to = ctl_number(a, TO, UINT64_MAX);
	if (!look(w)) /* before its ring fetches anything */
		return CTL_FAILED;
	w->before = w->now;
	if (tokend_attach(&w->t, &session, why, sizeof(why)) < 0)
		return w->interrupted ? CTL_FAILED : ctl_fail("%s", why);
	status = run(w);
	tokend_detach(w->t);
	return status;
}

static int warm(const struct ctl_arguments *a)
{
	struct warm *w = calloc(1, sizeof(*w));
	int status = CTL_FAILED;

	if (!w)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(&w->link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		w->stream = a->argument[0];
		w->signals = ctl_signals();
		status = attach(w, a);
		ctl_disconnect(&w->link);
	}
	free(w);
	return status;
}

const struct ctl_command ctl_cache_warm = {
	.name = "cache warm",
	.arguments = "STREAM",
	.least = 1,
	.most = 1,
	.help = "fetch the next pieces of a stream into the cache",
	.about = "Reads the stream as a run of its own, tokctl-warm, so that its pieces are in the "
		 "cache before a trainer needs them. It ends at --to, when all pieces are there, "
		 "or when the cache is nearly full: in the stream's order, the nearest pieces "
		 "stay. Ctrl-C ends it earlier, and the pieces are kept.",
	.examples = CTL_EXAMPLES({"fetch what the first 100,000 samples need, if there is a cache",
		"tokctl cache warm train --to 100000 -c tokend.yaml || true"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = warm,
};
