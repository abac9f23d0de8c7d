/* Waiting, and the warnings of a call that waits. */
#include "client/lib/handle.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* ---- the clock ---- */

enum { IDLE_MS = 100 }; /* between two calls of idle() */

int64_t wait_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int wait_ready(struct tokend *t, int fd, short events, int64_t until)
{
	const int64_t longest = (t->options.idle ? IDLE_MS : WAIT_SLICE_MS) * WAIT_MS;
	struct pollfd p = {fd, events, 0};

	for (;;) {
		int64_t left = until - wait_now(),
			slice = left < 0 ? 0 : wait_earlier(left, longest);
		const struct timespec time = {slice / (1000 * WAIT_MS), slice % (1000 * WAIT_MS)};
		int n = ppoll(&p, 1, &time, NULL);

		if (n > 0)
			return 1;
		if (left <= longest && n == 0)
			return 0;
		if (t->options.idle && t->options.idle(t->options.context))
			return handle_fail(t, TOKEND_EAGAIN, "", "interrupted");
	}
}

/* ---- the warnings of a wait ---- */

#define SECOND (1000 * WAIT_MS)

enum { WARNINGS = 3 };

static const int64_t after[WARNINGS] = {2 * SECOND, 10 * SECOND, 60 * SECOND};

void waiting_begin(struct waiting *w, int64_t since)
{
	*w = (struct waiting){.since = since};
}

int64_t waiting_at(const struct waiting *w)
{
	return w->next < WARNINGS ? w->since + after[w->next] : INT64_MAX;
}

static int warn(struct tokend *t, struct waiting *w, const char *line)
{
	if (!t->options.warn)
		return 0;
	w->said = true;
	return t->options.warn(t->options.warn_context, line)
		       ? handle_fail(t, TOKEND_EAGAIN, "", "interrupted")
		       : 0;
}

int waiting_say(struct tokend *t, struct waiting *w, int64_t end, const char *subject,
	const char *format, ...)
{
	char text[LIMIT_TEXT_BYTES], line[LIMIT_TEXT_BYTES + 256], more[64] = "";
	int64_t now = wait_now(), left = end - now;
	va_list args;

	if (now < waiting_at(w))
		return 0;
	while (now >= waiting_at(w))
		w->next++;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (left < FOREVER / 2)
		snprintf(more, sizeof(more), "; trying for another %" PRId64 " s",
			left > 0 ? left / SECOND : 0);
	snprintf(line, sizeof(line), "%s: waiting %" PRId64 " s for %s%s", subject,
		(now - w->since) / SECOND, text, more);
	return warn(t, w, line);
}

int waiting_over(struct tokend *t, struct waiting *w)
{
	char line[LIMIT_TEXT_BYTES];
	int r;

	if (!w->said)
		return 0;
	snprintf(line, sizeof(line), "socket: waited %" PRId64 " s for the daemon at %s; goes on",
		(wait_now() - w->since) / SECOND, t->socket);
	r = warn(t, w, line);
	w->said = false;
	return r;
}

/* ---- slow batches ---- */

/* If every batch is slow, one line a minute is enough. */
#define QUIET_NS (60 * SECOND)

void slow_begin(const struct tokend *t, struct waiting *w)
{
	bool said = w->said;

	waiting_begin(w, wait_now());
	w->said = said;
	if (t->slowed && w->since - t->slowed < QUIET_NS)
		w->next = 1;
}

int64_t slow_end(const struct tokend *t, const struct waiting *w)
{
	return w->since + t->max_wait_ns;
}

/*
 * Writes what the next batch waits for: what the daemon says, otherwise the shard that it reads,
 * from the rows that it has planned. It writes them meanwhile, so a row counts only if it has the
 * position that belongs there.
 */
static void describe(const struct tokend *t, char *text, size_t bytes)
{
	const struct mapping *m = t->mapping;
	const volatile struct ring_row *row = ring_rows(&m->ring, m->queue.taken);
	uint64_t due = t->taken + t->rank * t->micro_batch;
	char reason[RING_REASON_BYTES], doing[LIMIT_NAME_BYTES + 64] = "has not begun to read it";

	if (ring_reason(&m->ring, reason)) {
		snprintf(text, bytes, "%s", reason);
		return;
	}
	for (uint32_t r = m->ring.geometry.rows; r-- > 0;) {
		uint32_t dataset = row[r].dataset, shard = row[r].shard; /* read once */

		if (row[r].position == due + r && dataset < t->origin.datasets)
			snprintf(doing, sizeof(doing), "reads shard %" PRIu32 " of dataset %s",
				shard, t->origin.dataset[dataset].name);
	}
	snprintf(text, bytes,
		"position %" PRIu64
		": the daemon at %s %s, so storage is slow or it hangs; see tokctl status",
		due, t->socket, doing);
}

int slow_look(struct tokend *t, struct waiting *w)
{
	int64_t now = wait_now();
	bool over = now >= slow_end(t, w);
	char text[LIMIT_TEXT_BYTES], subject[LIMIT_NAME_BYTES + 8];

	if (!(now >= waiting_at(w) || over) || release_queue_full(&t->mapping->queue))
		return 0;
	describe(t, text, sizeof(text));
	snprintf(subject, sizeof(subject), "stream %s", t->stream);
	if (!over)
		return waiting_say(t, w, slow_end(t, w), subject, "%s", text);
	if (w->said)
		t->slowed = wait_now();
	return handle_fail(t, TOKEND_EWAIT, "max_wait",
		"%s: no batch within %g s, waiting for %s; call next() again", subject,
		(double)t->max_wait_ns / SECOND, text);
}

int slow_over(struct tokend *t, struct waiting *w)
{
	if (w->said)
		t->slowed = wait_now();
	return waiting_over(t, w);
}
