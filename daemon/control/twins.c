#include "daemon/control/control.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SETTLED_MS = 1000 };

/* A process without a token is identified by its pid; one in another PID namespace, by its token.
 */
static bool same_process(const struct connection *a, const struct connection *b)
{
	if (a->pid > 0 && a->pid == b->pid)
		return true;
	if (a->token != 0 && b->token != 0)
		return a->token == b->token;
	return a->pid <= 0 && b->pid <= 0;
}

static bool same_rank(const struct session *a, const struct session *b)
{
	return a->stream->slot == b->stream->slot && a->rank == b->rank && a->world == b->world &&
	       a->peer == b->peer && !a->helper && !b->helper && !a->left && !b->left &&
	       !a->connection->closing && !b->connection->closing && strcmp(a->run, b->run) == 0;
}

/* A session of another process for the rank of @s, or NULL. @fed: only one that is fed. */
static struct session *find(const struct session *s, bool fed)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		struct session *other = s->control->sessions.of[i];

		if (other && other != s && (other->fed || !fed) && same_rank(s, other) &&
			!same_process(s->connection, other->connection))
			return other;
	}
	return NULL;
}

/* "pid 7 on node1"; a pid in another namespace is unknown. */
static void name_process(char *to, size_t capacity, const struct connection *c)
{
	const char *host = c->host[0] ? c->host : "an unnamed host";

	if (c->pid > 0)
		snprintf(to, capacity, "pid %d on %s", (int)c->pid, host);
	else
		snprintf(to, capacity, "a process in another PID namespace on %s", host);
}

bool twins_allow(const struct session *s, struct fault *fault)
{
	const struct session *other = s->strict && !s->helper ? find(s, false) : NULL;
	char there[LIMIT_NAME_BYTES + 80], here[LIMIT_NAME_BYTES + 80];

	if (!other)
		return true;
	name_process(there, sizeof(there), other->connection);
	name_process(here, sizeof(here), s->connection);
	return fault_set_passing(fault, FAULT_ATTACH, "rank",
		"rank %" PRIu64 " of %" PRIu64 " of run %s, peer %" PRIu64
		", is read by %s; this is %s; end that one, or give this job another run, or, if "
		"both are tensor- or pipeline-parallel peers, give each its own peer",
		s->rank, s->world, s->run, s->peer, there, here);
}

static void warn(struct session *s, const struct session *other)
{
	char there[LIMIT_NAME_BYTES + 80], here[LIMIT_NAME_BYTES + 80], text[LIMIT_TEXT_BYTES];

	if (s->twin_told)
		return;
	s->twin_told = true;
	name_process(there, sizeof(there), other->connection);
	name_process(here, sizeof(here), s->connection);
	snprintf(text, sizeof(text),
		"rank %" PRIu64 " of %" PRIu64 " of run %s, peer %" PRIu64
		", of stream %s is read twice, by this process (%s) and by %s: both take the same "
		"samples; end one, or give each its own rank and world, its own run, or, if they "
		"are peers, its own peer",
		s->rank, s->world, s->run, s->peer, s->stream->config->name, here, there);
	if (!other->twin_told)
		log_client(s->connection->uid, LOG_WARNING,
			"stream %s: rank %" PRIu64 " of %" PRIu64
			" of run %s is read by %s and by %s: both take the same samples; end one",
			s->stream->config->name, s->rank, s->world, s->run, here, there);
	connection_warn(s->connection, text);
}

static void look(struct session *s)
{
	struct session *other = find(s, true);

	if (!other)
		return;
	warn(s, other);
	if (!s->connection->closing && !other->connection->closing)
		warn(other, s);
}

void twins_join(struct session *s)
{
	struct session *former = s->replaces;

	s->fed_since_ms = uv_now(s->control->loop);
	if (!former) /* otherwise a seek: do not warn again */
		return;
	former->left = true;
	s->sought = true;
	s->fed_since_ms = former->fed_since_ms;
	s->twin_told = former->twin_told;
	s->mix_told = former->mix_told;
}

void twins_joined(struct session *s)
{
	if (!s->sought && !s->connection->closing)
		look(s);
}

void twins_clock(struct session *s, uint64_t now_ms)
{
	if (!s->sought || !s->fed || s->left || s->connection->closing ||
		now_ms - s->fed_since_ms < SETTLED_MS)
		return;
	s->sought = false;
	look(s);
}
