#include "client/lib/search.h"

#include "client/lib/connect.h"
#include "client/lib/places.h"
#include "client/lib/wait.h"
#include "client/lib/warn.h"
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
	warn_begin(&s->warnings, s->since);
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
	struct warnings *w = &s->warnings;

	if (!warn_due(w))
		return 0;

	char why[LINK_WHY_BYTES];
	int64_t left = search_give_up(s) - wait_now(), waited = warn_waited(w),
		seconds = left > 0 ? left / SECOND : 0;

	if (s->refused)
		return warn_say(t, w,
			"%s: %s; refused for %" PRId64 " s, trying for another %" PRId64 " s",
			s->refusal.field, s->refusal.text, waited, seconds);
	if (s->fd >= 0 || s->error == ETIMEDOUT)
		return warn_say(t, w,
			"socket: the daemon at %s has not answered for %" PRId64
			" s (is it starting?); waiting for another %" PRId64 " s",
			t->socket, waited, seconds);
	if (t->config)
		return warn_say(t, w,
			"config: the daemon for %s has been starting for %" PRId64
			" s; its log is %s.log; waiting for another %" PRId64 " s",
			t->config, waited, t->socket, seconds);
	return warn_say(t, w,
		"socket: no daemon has answered at %s for %" PRId64 " s (%s); " PHRASE_START
		"; waiting for another %" PRId64 " s",
		t->socket, waited, link_why(t->socket, s->error, why), seconds);
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
		return handle_fail_errno(t, TOKEND_EMEMORY, s->error, "socket", "%s: %s", t->socket,
			strerror(s->error));
	if (s->error == ENAMETOOLONG)
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
			"%s has %zu bytes; a socket's path has at most 107", t->socket,
			strlen(t->socket));
	if (s->error == EACCES && s->patience.since)
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
			"%s: %s; " PHRASE_DENIED, t->socket, error);
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
	if (t->anywhere && s->error != ETIMEDOUT) {
		places_read(&places, NULL, NULL);
		places_tell(places.place, places.n, tried);
		return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
			"no daemon answers at %s; " PHRASE_START, tried);
	}
	return handle_fail_errno(t, TOKEND_ECONNECT, s->error, "socket",
		"no daemon answers at %s (%s); " PHRASE_START, t->socket, error);
}
