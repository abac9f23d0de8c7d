/*
 * Waiting for the daemon: how long a search for it lasts, and the warnings of a call that waits.
 */
#include "client/lib/handle.h"

#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
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
	const int64_t longest = (t->call.idle ? IDLE_MS : WAIT_SLICE_MS) * WAIT_MS;
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
		if (t->call.idle && t->call.idle(t->call.context))
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

bool waiting_due(struct waiting *w)
{
	int64_t now = wait_now();
	bool due = now >= waiting_at(w);

	while (now >= waiting_at(w))
		w->next++;
	return due;
}

static int64_t waited(const struct waiting *w)
{
	return (wait_now() - w->since) / SECOND;
}

static int warn(struct tokend *t, struct waiting *w, const char *line)
{
	if (!t->call.warn)
		return 0;
	w->said = true;
	return t->call.warn(t->call.warn_context, line)
		       ? handle_fail(t, TOKEND_EAGAIN, "", "interrupted")
		       : 0;
}

int waiting_say(struct tokend *t, struct waiting *w, int64_t end, const char *subject,
	const char *format, ...)
{
	char text[LIMIT_TEXT_BYTES], line[LIMIT_TEXT_BYTES + 256], more[64] = "";
	int64_t left = end - wait_now();
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (left < FOREVER / 2)
		snprintf(more, sizeof(more), "; trying for another %" PRId64 " s",
			left > 0 ? left / SECOND : 0);
	snprintf(line, sizeof(line), "%s: waiting %" PRId64 " s for %s%s", subject, waited(w), text,
		more);
	return warn(t, w, line);
}

int waiting_over(struct tokend *t, struct waiting *w)
{
	char line[LIMIT_TEXT_BYTES];
	bool said = w->said;

	snprintf(line, sizeof(line), "socket: waited %" PRId64 " s for the daemon at %s; goes on",
		waited(w), t->socket);
	if (said)
		said = warn(t, w, line) < 0;
	w->said = false;
	return said ? TOKEND_EAGAIN : 0;
}

/* ---- searches ---- */

enum {
	BACKOFF_MS = 250,  /* longest pause between two tries */
	REFUSED_MS = 1000, /* the same after a passing refusal: a try costs the daemon an attach */
};

void search_begin(struct search *s, const struct patience *patience)
{
	int64_t now = wait_now();

	*s = (struct search){
		.fd = -1,
		.active = true,
		.backoff_ms = 1,
		.since = patience->since ? patience->since : now,
		.retry = now,
		.patience = *patience,
	};
	waiting_begin(&s->waiting, now);
}

void search_end(struct search *s)
{
	if (s->active && s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->active = false;
}

/* The next try follows after half to all of the backoff, so that ranks do not try all at once. */
void search_later(struct tokend *t, struct search *s, int error, int refused)
{
	const uint32_t most = refused ? REFUSED_MS : BACKOFF_MS;
	int64_t now = wait_now(), backoff = s->backoff_ms * WAIT_MS;
	uint64_t chance = order_mix64((uint64_t)now ^ (uint64_t)getpid() << 32);

	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->error = error;
	s->refused = refused;
	if (refused)
		s->refusal = t->fault;
	s->retry = now + backoff / 2 + (int64_t)(chance % (uint64_t)(backoff / 2));
	s->backoff_ms = s->backoff_ms * 2 < most ? s->backoff_ms * 2 : most;
}

void search_again(struct search *s)
{
	if (s->fd < 0)
		return;
	close(s->fd);
	s->fd = -1;
	s->retry = wait_now();
}

bool search_nobody(const struct search *s)
{
	return s->error == ENOENT || s->error == ECONNREFUSED;
}

/* True if a daemon exists, which is starting or stopping, or refuses for now. */
static bool is_there(const struct search *s)
{
	return s->fd >= 0 || s->refused || s->error == ETIMEDOUT || s->error == ECONNRESET ||
	       s->error == EPIPE || s->error == EAGAIN;
}

int64_t search_give_up(const struct search *s)
{
	uint32_t ms = s->patience.connect_ms;

	if (is_there(s) && s->patience.deadline_ms > ms)
		ms = s->patience.deadline_ms;
	if (s->error == ENAMETOOLONG || (s->error == EACCES && s->patience.since))
		ms = 0;
	return s->since + ms * WAIT_MS;
}

int search_warn(struct tokend *t, struct search *s)
{
	int64_t end = search_give_up(s);
	char why[LINK_WHY_BYTES];

	if (!waiting_due(&s->waiting))
		return 0;
	if (s->refused)
		return waiting_say(
			t, &s->waiting, end, s->refusal.field, "a session: %s", s->refusal.text);
	if (s->fd >= 0 || s->error == ETIMEDOUT)
		return waiting_say(t, &s->waiting, end, "socket",
			"the daemon at %s, which does not answer (is it starting?)", t->socket);
	if (t->config)
		return waiting_say(t, &s->waiting, end, "config",
			"the daemon of %s to start; its log is %s.log", t->config, t->socket);
	return waiting_say(t, &s->waiting, end, "socket", "a daemon at %s (%s); " PHRASE_START,
		t->socket, link_why(t->socket, s->error, why));
}

int search_gave_up(struct tokend *t, const struct search *s)
{
	int64_t seconds = (wait_now() - s->since) / SECOND;
	char why[LINK_WHY_BYTES];
	char tried[LIMIT_TEXT_BYTES];
	struct places places;
	const char *error = s->error == ETIMEDOUT ? "it accepts connections, but does not answer"
						  : link_why(t->socket, s->error, why);

	if (s->refused)
		return handle_fail(t, (enum tokend_error)s->refused, s->refusal.field,
			"%s (tried for %" PRId64 " s)", s->refusal.text, seconds);
	if (s->error == EMFILE || s->error == ENFILE || s->error == ENOMEM)
		return handle_fail(
			t, TOKEND_EMEMORY, "socket", "%s: %s", t->socket, strerror(s->error));
	if (s->error == ENAMETOOLONG)
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"%s has %zu bytes; a socket's path has at most 107", t->socket,
			strlen(t->socket));
	if (s->error == EACCES && s->patience.since)
		return handle_fail(
			t, TOKEND_ECONNECT, "socket", "%s: %s; " PHRASE_DENIED, t->socket, error);
	if (s == &t->search)
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"the daemon at %s was lost %" PRId64
			" s ago and did not come back (%s); start it, and resume from the "
			"cursor at position %" PRIu64,
			t->socket, seconds, error, handle_position(t));
	if (t->config)
		return handle_fail(t, TOKEND_ECONNECT, "config",
			"the daemon for %s did not answer within %g s; look at its log, %s.log",
			t->config, (double)(search_give_up(s) - s->since) / SECOND, t->socket);
	if (t->anywhere && s->error != ETIMEDOUT) {
		places_read(&places, NULL, NULL);
		places_tell(places.place, places.n, tried);
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"no daemon answers at %s; " PHRASE_START, tried);
	}
	return handle_fail(t, TOKEND_ECONNECT, "socket",
		"no daemon answers at %s (%s); " PHRASE_START, t->socket, error);
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
	uint32_t dataset = 0, shard = 0, others = 0;
	const char *name = NULL;

	if (ring_reason(&m->ring, reason)) {
		snprintf(text, bytes, "%s", reason);
		return;
	}
	for (uint32_t r = 0; r < m->ring.geometry.rows; r++) {
		uint32_t d = row[r].dataset, s = row[r].shard; /* read once */

		if (row[r].position != due + r || d >= t->origin.datasets)
			continue;
		others += name && (d != dataset || s != shard);
		if (name)
			continue;
		dataset = d;
		shard = s;
		name = t->origin.dataset[d].name;
	}
	if (name)
		snprintf(doing, sizeof(doing), "reads shard %" PRIu32 " of dataset %s%s", shard,
			name, others ? " and others" : "");
	snprintf(text, bytes,
		"position %" PRIu64
		": the daemon at %s %s, so storage is slow or it hangs; see tokctl status",
		due, t->socket, doing);
}

int slow_look(struct tokend *t, struct waiting *w)
{
	bool due = waiting_due(w), over = wait_now() >= slow_end(t, w);
	char text[LIMIT_TEXT_BYTES], subject[LIMIT_NAME_BYTES + 8];

	if (!(due || over) || release_queue_full(&t->mapping->queue))
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
