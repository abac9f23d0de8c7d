/*
 * Warnings at an attach: of twins, of tokens that may not be the ones that are meant, and of
 * weights, limits and a schedule in the config that have no effect.
 *
 * Twins are sessions of two processes for the same run, rank and peer: both take the same samples.
 * Both are warned when the second attaches; if it got there by a seek, a second or two later: ranks
 * that exchange their places meet for a moment. A strict session is refused instead.
 */
#include "daemon/control/control.h"
#include "proto/cursor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	SETTLED_MS = 1000, /* from a seek to the look for twins */
	DOUBTS_MOST = 8,   /* a socket does not hold a warning for each of many datasets */
	MIX_TEXT_BYTES = 256,
	PROCESS_BYTES = LIMIT_NAME_BYTES + 80,
};

/* ---- twins ---- */

/* A process without a token is known by its pid; one in another PID namespace, by its token. */
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
	return a->stream == b->stream && a->rank == b->rank && a->world == b->world &&
	       a->peer == b->peer && !a->helper && !b->helper && !a->left && !b->left &&
	       !a->connection->closing && !b->connection->closing && strcmp(a->run, b->run) == 0;
}

/* A session of another process for the rank of @s, or NULL. @fed: only one that is fed. */
static struct session *find_twin(const struct session *s, bool fed)
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
static const char *name_process(char to[PROCESS_BYTES], const struct connection *c)
{
	const char *host = c->host[0] ? c->host : "an unnamed host";

	if (c->pid > 0)
		snprintf(to, PROCESS_BYTES, "pid %d on %s", (int)c->pid, host);
	else
		snprintf(to, PROCESS_BYTES, "a process in another PID namespace on %s", host);
	return to;
}

static void describe_twins(
	char text[LIMIT_TEXT_BYTES], const struct session *s, const struct session *other)
{
	char one[PROCESS_BYTES], two[PROCESS_BYTES];

	snprintf(text, LIMIT_TEXT_BYTES,
		"stream %s: rank %" PRIu64 " of %" PRIu64 " of run %s, peer %" PRIu64
		", is read twice, by %s and by %s: both take the same samples; end one, or give "
		"each its own rank and world, its own run, or, if they are tensor- or "
		"pipeline-parallel peers, its own peer",
		s->stream->config->name, s->rank, s->world, s->run, s->peer,
		name_process(one, other->connection), name_process(two, s->connection));
}

bool twins_allow(const struct session *s, struct fault *fault)
{
	const struct session *other = s->strict && !s->helper ? find_twin(s, false) : NULL;
	char text[LIMIT_TEXT_BYTES];

	if (!other)
		return true;
	describe_twins(text, s, other);
	return fault_set_passing(fault, FAULT_ATTACH, "rank", "%s", text);
}

/* Warns @s and its twin, if there is one. May close their connections. */
static void look_for_twin(struct session *s)
{
	struct session *pair[] = {s, find_twin(s, true)};
	char text[LIMIT_TEXT_BYTES];

	s->twins_ms = 0;
	if (!pair[1])
		return;
	describe_twins(text, s, pair[1]);
	if (!s->twin_told && !pair[1]->twin_told)
		log_client(s->connection->uid, LOG_WARNING, "%s", text);
	for (int i = 0; i < 2; i++)
		if (!pair[i]->twin_told) {
			pair[i]->twin_told = true;
			connection_warn(pair[i]->connection, text);
		}
}

void twins_clock(struct session *s, uint64_t now_ms)
{
	if (s->fed && s->twins_ms > 0 && now_ms >= s->twins_ms)
		look_for_twin(s);
}

/* ---- the mix ---- */

/* Writes " NAME=SHARE" for each dataset of @names with a share in @mix, a segment of @c. */
static const char *put_mix(char text[MIX_TEXT_BYTES], const struct cursor *c,
	const struct order_segment *mix, const struct cursor *names)
{
	double sum = 0;
	size_t n = 0;

	text[0] = 0;
	for (uint32_t i = 0; i < mix->datasets; i++)
		sum += (double)mix->units[i];
	for (uint32_t i = 0; i < names->datasets && n < MIX_TEXT_BYTES; i++) {
		int d = cursor_find(c, names->dataset[i].name);

		if (d >= 0 && (uint32_t)d < mix->datasets && mix->units[d] > 0)
			n += (size_t)snprintf(text + n, MIX_TEXT_BYTES - n, " %s=%.4g",
				names->dataset[i].name, (double)mix->units[d] / sum);
	}
	return text;
}

/* Warns of limits, a first schedule and weights in the config that were edited since the run began,
 * and so have no effect. Not of other schedules, and of weights only if the mix has not changed
 * since then: that may be an operator's doing. */
static void warn_of_mix(struct session *s, const struct cursor *c)
{
	const struct cursor *begin = &s->stream->begin;
	const char *stream = s->stream->config->name;
	char is[MIX_TEXT_BYTES], was[MIX_TEXT_BYTES], kept[MIX_TEXT_BYTES] = "";
	char text[LIMIT_TEXT_BYTES];
	bool same = false;

	if (s->mix_told)
		return;
	put_mix(is, begin, begin->segment[0], begin);
	for (uint32_t i = 0; i < c->segments; i++)
		same |= strcmp(put_mix(was, c, c->segment[i], begin), is) == 0;
	if (same && c->segments == 1 && begin->segments > 1)
		strcpy(kept, "one mix");
	for (uint32_t i = 0; i < begin->datasets; i++) {
		const struct cursor_dataset *now = &begin->dataset[i];
		int d = cursor_find(c, now->name);

		if (d >= 0 && c->dataset[d].max_epochs != now->max_epochs)
			snprintf(kept, sizeof(kept), "max_epochs of dataset %s", now->name);
	}
	if (*kept)
		snprintf(text, sizeof(text),
			"stream %s: run %s keeps the %s that it began with; the config's schedule "
			"and max_epochs act in new runs only; to change this run, edit its "
			"cursor: tokctl cursor schedule",
			stream, s->run, kept);
	else if (!same && !c->epochs && cursor_now(c)->start == 0)
		snprintf(text, sizeof(text),
			"stream %s: run %s keeps the mix that it began with,%s; the config's "
			"weights are now%s, and act in new runs only; to change this run: tokctl "
			"mix %s --run %s%s",
			stream, s->run, put_mix(was, c, c->segment[0], c), is, stream, s->run, is);
	else
		return;
	connection_warn(s->connection, text);
	s->mix_told = true;
}

/* ---- doubts ---- */

static void log_remark(void *none, const struct stream *s, bool doubt, const char *text)
{
	(void)none;
	log_line(doubt ? LOG_WARNING : LOG_NOTE, "stream %s: %s", s->config->name, text);
}

void warn_log(const struct catalog *catalog)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		stream_notes(&catalog->stream[i], log_remark, NULL);
}

struct doubts {
	struct connection *connection;
	unsigned n;
};

static void warn_of_doubt(void *context, const struct stream *s, bool doubt, const char *text)
{
	struct doubts *doubts = context;
	char line[LIMIT_TEXT_BYTES];

	doubts->n += doubt;
	if (!doubt || doubts->n > DOUBTS_MOST)
		return;
	snprintf(line, sizeof(line), "stream %s: %s%s", s->config->name, text,
		doubts->n == DOUBTS_MOST ? " (tokend's log may have more warnings)" : "");
	connection_warn(doubts->connection, line);
}

void warn_attached(struct session *s, const struct cursor *c)
{
	struct session *former = s->replaces;

	if (former) { /* a seek: it was warned before */
		former->left = true;
		s->twin_told = former->twin_told;
		s->mix_told = former->mix_told;
		s->twins_ms = former->twins_ms ? former->twins_ms : s->attached_ms + SETTLED_MS;
	}
	if (!s->again && !s->helper && s->rank == 0 && s->peer == 0) { /* once a job */
		if (!former)
			stream_notes(s->stream, warn_of_doubt, &(struct doubts){s->connection, 0});
		warn_of_mix(s, c);
	}
	if (!former)
		look_for_twin(s);
}
