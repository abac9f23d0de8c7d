#include "client/lib/search.h"

#include "client/lib/wait.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND (1000 * WAIT_MS)

enum {
	BACKOFF_MS = 250,  /* longest pause between two tries */
	REFUSED_MS = 1000, /* the same after a passing refusal: a try costs the daemon an attach */
	WARNINGS = 3,
};

static const int64_t warn_after[WARNINGS] = {2 * SECOND, 10 * SECOND, 60 * SECOND};

void search_begin(struct search *s, const struct patience *patience)
{
	int64_t now = wait_now();

	*s = (struct search){
		.fd = -1,
		.active = true,
		.backoff_ms = 1,
		.since = now,
		.retry = now,
		.patience = *patience,
	};
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
	return s->since + ms * WAIT_MS;
}

int64_t search_warn_at(const struct search *s)
{
	return s->warnings < WARNINGS ? s->since + warn_after[s->warnings] : INT64_MAX;
}

static void describe_wait(const struct tokend *t, const struct search *s, char *line, size_t bytes)
{
	int64_t now = wait_now(), left = search_give_up(s) - now;
	int64_t waited = (now - s->since) / SECOND, seconds = left > 0 ? left / SECOND : 0;

	if (s->refused)
		snprintf(line, bytes,
			"%s: %s; refused for %" PRId64 " s, trying for another %" PRId64 " s",
			s->refusal.field, s->refusal.text, waited, seconds);
	else if (s->fd >= 0 || s->error == ETIMEDOUT)
		snprintf(line, bytes,
			"socket: the daemon at %s has not answered for %" PRId64
			" s (is it starting?); waiting for another %" PRId64 " s",
			t->socket, waited, seconds);
	else
		snprintf(line, bytes,
			"socket: no daemon has answered at %s for %" PRId64 " s (%s); " PHRASE_START
			"; waiting for another %" PRId64 " s",
			t->socket, waited, strerror(s->error), seconds);
}

int search_warn(struct tokend *t, struct search *s)
{
	char line[1400];

	if (wait_now() < search_warn_at(s))
		return 0;
	while (wait_now() >= search_warn_at(s))
		s->warnings++;
	if (!t->call.warn)
		return 0;
	describe_wait(t, s, line, sizeof(line));
	return t->call.warn(t->call.warn_context, line)
		       ? handle_fail(t, TOKEND_EAGAIN, "", "interrupted")
		       : 0;
}

int search_gave_up(struct tokend *t, const struct search *s)
{
	int64_t seconds = (wait_now() - s->since) / SECOND;
	const char *error = s->error == ETIMEDOUT ? "it accepts connections, but does not answer"
						  : strerror(s->error);

	if (s->refused)
		return handle_fail(t, (enum tokend_error)s->refused, s->refusal.field,
			"%s (tried for %" PRId64 " s)", s->refusal.text, seconds);
	if (s->error == EMFILE || s->error == ENFILE || s->error == ENOMEM)
		return handle_fail_errno(t, TOKEND_EMEMORY, s->error, "socket", "%s: %s", t->socket,
			strerror(s->error));
	if (s->error == ENAMETOOLONG)
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
			"%s has %zu bytes; a socket's path has at most 107", t->socket,
			strlen(t->socket));
	if (s == &t->search)
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
			"the daemon at %s was lost %" PRId64
			" s ago and did not come back (%s); start it, and resume from the "
			"cursor at position %" PRIu64,
			t->socket, seconds, error, handle_position(t));
	if (t->config)
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "config",
			"the daemon for %s did not answer within %g s; look at its log, %s.log",
			t->config, (double)(search_give_up(s) - s->since) / SECOND, t->socket);
	return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
		"no daemon answers at %s (%s); " PHRASE_START, t->socket, error);
}
