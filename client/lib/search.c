/*
 * Attaching: find a daemon, map its ring, read its cursor. A daemon may die at any time and restart
 * without memory of its sessions, so an attach carries the complete state.
 */

#include "client/lib/handle.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	HANDSHAKE_MS = 30000, /* limit from connect to feed; the daemon may open shards */
};

int attach_check(struct tokend *t, const struct target *target)
{
	if (target->world < 1 || target->world > LIMIT_WORLD)
		return handle_fail(t, TOKEND_EARGUMENT, "world", PHRASE_RANGE, target->world,
			(uint64_t)LIMIT_WORLD);
	if (target->rank >= target->world)
		return handle_fail(t, TOKEND_EARGUMENT, "rank",
			"%" PRIu64 " is not less than world (%" PRIu64 ")", target->rank,
			target->world);
	if (target->micro_batch < 1 || target->micro_batch > LIMIT_MICRO_BATCH)
		return handle_fail(t, TOKEND_EARGUMENT, "micro_batch", PHRASE_RANGE,
			(uint64_t)target->micro_batch, (uint64_t)LIMIT_MICRO_BATCH);
	return 0;
}

/* ---- searching ---- */

/* Did nobody name the socket? Then each try before the first attach looks again. */
static bool is_anywhere(const struct tokend *t)
{
	return !t->options.socket && !t->options.config;
}

enum {
	BACKOFF_MS = 250,  /* longest pause between two tries */
	REFUSED_MS = 1000, /* the same after a passing refusal: a try costs the daemon an attach */
};

static void search_begin(struct search *s, uint32_t connect_ms, bool waits)
{
	int64_t now = wait_now();

	*s = (struct search){.fd = -1,
		.active = true,
		.waits = waits,
		.connect_ms = connect_ms,
		.backoff_ms = 1,
		.retry = now};
	waiting_begin(&s->waiting, now);
}

void search_end(struct search *s)
{
	if (s->active)
		link_close(s->fd);
	s->fd = -1;
	s->active = false;
}

/*
 * The last try failed with errno @error, or with the passing refusal @refused, which is the
 * handle's last failure. The next one follows after half to all of the backoff, so that ranks do
 * not try all at once.
 */
static void search_later(struct tokend *t, struct search *s, int error, int refused)
{
	const uint32_t most = refused ? REFUSED_MS : BACKOFF_MS;
	int64_t now = wait_now(), backoff = s->backoff_ms * WAIT_MS;
	uint64_t chance = order_mix64((uint64_t)now ^ (uint64_t)getpid() << 32);

	link_close(s->fd);
	s->fd = -1;
	s->error = error;
	s->refused = refused;
	if (refused)
		s->refusal = t->fault;
	s->retry = now + backoff / 2 + (int64_t)(chance % (uint64_t)(backoff / 2));
	s->backoff_ms = s->backoff_ms * 2 < most ? s->backoff_ms * 2 : most;
}

/* Did no process listen at the last try? */
static bool search_nobody(const struct search *s)
{
	return s->error == ENOENT || s->error == ECONNREFUSED;
}

/* The time at which the search ends if nothing changes. A daemon that is starting or stopping, or
 * refuses for now, gets longer than none. */
static int64_t search_give_up(const struct tokend *t, const struct search *s)
{
	uint32_t ms = s->connect_ms, longer = t->options.deadline_ms;
	bool there = s->fd >= 0 || s->refused || s->error == ETIMEDOUT || s->error == ECONNRESET ||
		     s->error == EPIPE || s->error == EAGAIN;

	if (there && longer > ms)
		ms = longer;
	if (s->error == EACCES && !t->mapping)
		ms = 0;
	return s->waiting.since + ms * WAIT_MS;
}

static int search_warn(struct tokend *t, struct search *s)
{
	int64_t end = search_give_up(t, s);
	struct waiting *w = &s->waiting;
	char why[LINK_WHY_BYTES];

	if (s->refused)
		return waiting_say(t, w, end, s->refusal.field, "a session: %s", s->refusal.text);
	if (s->fd >= 0 || s->error == ETIMEDOUT)
		return waiting_say(t, w, end, "socket",
			"the daemon at %s, which does not answer (is it starting?)", t->socket);
	if (t->config)
		return waiting_say(t, w, end, "config",
			"the daemon of %s to start; its log is %s.log", t->config, t->socket);
	return waiting_say(t, w, end, "socket", "a daemon at %s (%s); " PHRASE_START, t->socket,
		link_why(t->socket, s->error, why));
}

/* The search found no daemon: returns its error. */
static int search_gave_up(struct tokend *t, const struct search *s)
{
	int64_t seconds = (wait_now() - s->waiting.since) / (1000 * WAIT_MS);
	char why[LINK_WHY_BYTES], tried[LIMIT_TEXT_BYTES];
	struct places places;
	const char *error = s->error == ETIMEDOUT ? "it accepts connections, but does not answer"
						  : link_why(t->socket, s->error, why);

	if (s->refused)
		return handle_fail(t, (enum tokend_error)s->refused, s->refusal.field,
			"%s (tried for %" PRId64 " s)", s->refusal.text, seconds);
	if (s->error == EMFILE || s->error == ENFILE || s->error == ENOMEM)
		return handle_fail(
			t, TOKEND_EMEMORY, "socket", "%s: %s", t->socket, strerror(s->error));
	if (s->error == EACCES && !t->mapping)
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
			"the daemon for %s did not answer within %" PRId64
			" s; look at its log, %s.log",
			t->config, seconds, t->socket);
	if (is_anywhere(t) && s->error != ETIMEDOUT) {
		places_read(&places, NULL, NULL);
		places_tell(places.place, places.n, tried);
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"no daemon answers at %s; " PHRASE_START, tried);
	}
	return handle_fail(t, TOKEND_ECONNECT, "socket",
		"no daemon answers at %s (%s); " PHRASE_START, t->socket, error);
}

static void set_attach(
	struct wire *w, const struct tokend *t, const struct target *target, uint64_t serial)
{
	*w = (struct wire){.op = WIRE_ATTACH};
	wire_set(w, WIRE_SERIAL, serial);
	wire_set_text(w, WIRE_STREAM, t->stream);
	wire_set_text(w, WIRE_RUN, t->run);
	wire_set(w, WIRE_RANK, target->rank);
	wire_set(w, WIRE_WORLD, target->world);
	wire_set(w, WIRE_MICRO, target->micro_batch);
	wire_set(w, WIRE_PEER, t->options.peer);
	wire_set(w, WIRE_SLOTS, t->options.slots);
	if (t->options.helper)
		wire_set(w, WIRE_HELPER, 1);
	if (t->options.strict && !t->mapping) /* a session that was accepted once may return */
		wire_set(w, WIRE_STRICT, 1);
	if (t->fd < 0 && t->mapping)
		wire_set(w, WIRE_AGAIN, 1);
	/* A seek: two rings exist for a moment, and `memory:` counts them as one. */
	if (t->fd >= 0 && t->mapping)
		wire_set(w, WIRE_REPLACES, t->mapping->session);
	if (target->cursor)
		wire_set_bytes(w, WIRE_CURSOR, target->cursor, target->cursor_bytes);
	else if (target->tag)
		wire_set_text(w, WIRE_TAG, target->tag);
	else if (target->at_position)
		wire_set(w, WIRE_POSITION, target->position);
	else
		wire_set(w, WIRE_BEGIN, 1);
}

/* Connects and sends hello and attach; search_receive() handles the replies. 0, or an error. */
static int search_connect(struct tokend *t, const struct target *target, struct search *s)
{
	struct wire attach;
	struct fault fault;

	if (is_anywhere(t) && !t->mapping && search_nobody(s))
		tokend_default_socket(t->socket, sizeof(t->socket));
	s->fd = link_open(t->socket, LINK_TRAINER, t->out, &fault);
	if (s->fd < 0 && fault.code == FAULT_PERMISSION)
		return handle_fault(t, &fault);
	if (s->fd < 0) {
		search_later(t, s, fault.error, 0);
		return 0;
	}
	set_attach(&attach, t, target, ++t->serial);

	/* If the daemon closed after hello, its reason can still be received. */
	if (!link_send(s->fd, &attach, t->out, &fault) && !link_closed(&fault)) {
		search_later(t, s, fault.error, 0);
		return 0;
	}
	s->answer_by = wait_earlier(wait_now() + HANDSHAKE_MS * WAIT_MS, search_give_up(t, s));
	return 0;
}

/* 1: a feed is in t->packet, 0: continue, or an error. */
static int search_receive(struct tokend *t, struct search *s)
{
	const struct wire *w = &t->packet.wire;
	int r;

	switch (message_next(t, s->fd)) {
	case LINK_NOTHING:
	case LINK_WAKE:
		return 0;
	case LINK_CLOSED:
		search_later(t, s, ECONNRESET, 0);
		return 0;
	case LINK_FAULT:
		if (t->packet.fault.code != FAULT_DESCRIPTORS)
			return message_invalid(t);
		search_later(t, s, EMFILE, 0);
		return 0;
	case LINK_MESSAGE:
		break;
	}
	if (w->op == WIRE_FEED)
		return 1;
	if (w->op == WIRE_ERROR) {
		r = message_refused(t);
		if (!t->fault.passing || !s->waits)
			return r;
		search_later(t, s, 0, r);
		return 0;
	}
	if (w->op != WIRE_HELLO)
		return message_unknown(t, wire_op_name(w->op));
	return wire_number(w, WIRE_VERSION_KEY) == WIRE_VERSION ? 0 : message_unknown(t, "version");
}

/* Starts the next try if it is due. 0, or an error. */
static int search_try(struct tokend *t, const struct target *target, struct search *s)
{
	int64_t now = wait_now();
	int r = 0;

	if (s->fd >= 0 && now >= s->answer_by)
		search_later(t, s, ETIMEDOUT, 0);
	if (s->fd < 0 && now >= s->retry) {
		r = search_connect(t, target, s);
		if (r == 0 && s->fd < 0 && search_nobody(s))
			r = t->config ? start_begin(t) : 0;
	}
	if (r == 0 && s->fd < 0 && now >= search_give_up(t, s))
		return search_gave_up(t, s);
	return r < 0 ? r : search_warn(t, s);
}

/*
 * Continues the search @s. Returns 1 with a feed in t->packet, for attach_feed(); 0 if there is
 * none yet and !@wait; or an error.
 */
static int attach_step(struct tokend *t, const struct target *target, struct search *s, bool wait)
{
	for (;;) {
		int r = search_try(t, target, s);

		if (r < 0)
			return r;

		int64_t until =
			s->fd >= 0 ? s->answer_by : wait_earlier(s->retry, search_give_up(t, s));

		until = wait_earlier(until, waiting_at(&s->waiting));
		r = wait_ready(t,
			s->fd >= 0	 ? s->fd
			: t->starter.pid ? t->starter.ended
					 : -1,
			POLLIN, wait ? until : 0);
		if (r == 0 && !wait)
			return 0;
		if (r == 1 && s->fd >= 0) {
			r = search_receive(t, s);
		} else if (r == 1) {
			r = start_finish(t);
			s->retry = wait_now();
		}
		if (r != 0)
			return r;
	}
}

/* ---- the feed ---- */

/* The feed is of another version, or this process lacks what a system call needs. */
static int feed_refused(struct tokend *t, const struct fault *fault)
{
	return fault->error ? handle_fail(t, TOKEND_EMEMORY, fault->field, "%s", fault->text)
			    : message_unknown(t, fault->text);
}

/* Makes a mapping and a cursor of the feed in t->packet; the caller owns both. Returns 1, or
 * EPROTOCOL, EMEMORY. */
static int attach_feed(
	struct tokend *t, const struct target *target, struct mapping **m, struct cursor *cursor)
{
	struct packet *p = &t->packet;
	struct wire_bytes bytes = wire_bytes(&p->wire, WIRE_CURSOR),
			  shards = wire_bytes(&p->wire, WIRE_SHARDS);
	struct fault fault;

	if (p->fds != 2)
		return message_unknown(t, "a feed without two descriptors");
	*m = mapping_open(p->fd[0], wire_number(&p->wire, WIRE_META_BYTES), p->fd[1],
		wire_number(&p->wire, WIRE_DATA_BYTES), &fault);
	packet_close(p);
	if (!*m)
		return feed_refused(t, &fault);
	if (!cursor_decode(cursor, bytes.at, bytes.n, &fault)) {
		mapping_close(*m, true);
		return feed_refused(t, &fault);
	}
	const struct ring_geometry *shape = &(*m)->ring.geometry;
	const char *wrong = NULL;
	char run[LIMIT_NAME_BYTES + 1];

	if (shape->rows != target->micro_batch ||
		shape->window_tokens != cursor->seq_len + cursor->extra ||
		(shape->token_bytes != 2 && shape->token_bytes != 4))
		wrong = "a ring of another shape than requested";
	else if (!wire_text(&p->wire, WIRE_RUN, run, sizeof(run)) || !wire_name_ok(run))
		wrong = "a run without a valid name";
	else if (shards.n != cursor->datasets * sizeof(struct wire_shards))
		wrong = "other datasets than those of its cursor";
	else
		(*m)->shards = malloc(shards.n);
	if (!(*m)->shards) {
		mapping_close(*m, true);
		cursor_free(cursor);
		return wrong ? message_unknown(t, wrong) : handle_memory(t);
	}
	memcpy((*m)->shards, shards.at, shards.n);
	(*m)->datasets = cursor->datasets;
	memcpy(t->run, run, sizeof(run)); /* the daemon may rename it */
	(*m)->contents = wire_number(&p->wire, WIRE_CONTENTS);
	(*m)->id = ++t->mappings;
	(*m)->session = wire_number(&p->wire, WIRE_ID);
	return 1;
}

int attach_find(struct tokend *t, const struct target *target, uint32_t connect_ms, bool waits,
	struct mapping **m, struct cursor *cursor, int *fd)
{
	struct search s;

	search_begin(&s, connect_ms, waits);

	int r = attach_step(t, target, &s, true);

	if (r == 1 && waiting_over(t, &s.waiting) < 0)
		r = TOKEND_EAGAIN;
	if (r == 1)
		r = attach_feed(t, target, m, cursor);
	if (r == 1) {
		*fd = s.fd;
		s.fd = -1;
	}
	search_end(&s);
	return r;
}

void attach_adopt(struct tokend *t, struct mapping *m, int fd)
{
	struct mapping *old = t->mapping;

	message_warnings(t);
	start_end(t);
	handle_lose(t);
	t->fd = fd;
	t->mapping = m;
	t->waits_for = 0;
	m->older = old;
	if (old && mapping_idle(old)) {
		m->older = old->older;
		mapping_close(old, true);
	}
}

int attach_same(struct tokend *t, const struct mapping *m, const struct cursor *cursor)
{
	const struct mapping *was = t->mapping;
	const struct ring_geometry *old = &was->ring.geometry, *new = &m->ring.geometry;

	/* token_bytes may differ: it is that of the widest dataset in the config. */
	if (new->window_tokens != old->window_tokens)
		return handle_fail(t, TOKEND_EREFUSED, "window",
			"the restarted daemon serves windows of %u tokens instead of %u; "
			"restore its config, or attach again",
			new->window_tokens, old->window_tokens);
	if (old->loss_mask != new->loss_mask || old->documents > new->documents)
		return handle_fail(t, TOKEND_EREFUSED,
			old->loss_mask != new->loss_mask ? "loss_mask" : "documents",
			"is no longer %s in the restarted daemon's config for stream %s; restore "
			"it there",
			old->loss_mask < new->loss_mask ? "false" : "true", t->stream);
	uint32_t d = wire_shards_differ(was->shards, was->datasets, m->shards, m->datasets);

	if (d < m->datasets)
		return handle_fail(t, TOKEND_EREFUSED, "shards",
			"dataset %s: names and lengths are as before, but the restarted daemon "
			"serves other tokens, documents or masks for stream %s, or a file was "
			"written again; restore its shards and config, or attach again",
			cursor->dataset[d].name, t->stream);
	return 1;
}

int revive(struct tokend *t, bool wait)
{
	struct search *s = &t->search;
	struct mapping *m = NULL;
	struct cursor cursor = {0};

	if (t->failed)
		return handle_failed(t);

	const struct cursor place = position_cursor(t, t->taken);
	const struct target target = {
		.cursor = t->bytes,
		.cursor_bytes = cursor_encode(&place, t->bytes, LIMIT_CURSOR_BYTES),
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch,
	};

	if (!s->active)
		search_begin(s, t->options.deadline_ms, true);
	/* A query was interrupted while its attach was under way, and batches were taken since. */
	if (s->position != t->taken && s->fd >= 0) {
		link_close(s->fd);
		s->fd = -1;
		s->retry = wait_now();
	}
	s->position = t->taken;

	int r = attach_step(t, &target, s, wait);

	/* The next call tries again. */
	if (r == 0 || r == TOKEND_EAGAIN || r == TOKEND_ESTART)
		return r;
	if (r == 1)
		r = attach_feed(t, &target, &m, &cursor);
	if (r == 1) {
		r = cursor.next == t->taken ? attach_same(t, m, &cursor)
					    : message_unknown(t, "a feed at another position");
		cursor_free(&cursor);
		if (r < 0)
			mapping_close(m, true);
	}
	if (r == 1) {
		attach_adopt(t, m, s->fd);
		s->fd = -1;
		t->reattached++;
		r = waiting_over(t, &s->waiting) < 0 ? TOKEND_EAGAIN : 1;
	}
	search_end(s);
	return r == 1 || r == TOKEND_EAGAIN || r == TOKEND_EMEMORY ? r : handle_latch(t, r);
}
