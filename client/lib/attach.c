/*
 * Attaching: find a daemon, map its ring, read its cursor. A daemon may die at any time and restart
 * without memory of its sessions, so an attach carries the complete state.
 */
#include "client/lib/position.h"

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

/*
 * The ring's memory should be on the reader's NUMA node: the one the reader is pinned to, or runs
 * on now.
 */
static void set_node(struct wire *w)
{
	unsigned cpu, node;

	if (getcpu(&cpu, &node) == 0)
		wire_set(w, WIRE_NODE, node);
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
	wire_set(w, WIRE_PEER, t->peer);
	wire_set(w, WIRE_SLOTS, t->slots);
	if (t->helper)
		wire_set(w, WIRE_HELPER, 1);
	if (t->strict && !t->mapping) /* a session that was accepted once may return */
		wire_set(w, WIRE_STRICT, 1);
	set_node(w);
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

/* Nobody listened where the last try looked. By now a daemon may listen at another of the places.
 */
static bool look_again(struct tokend *t)
{
	struct places places;
	const char *found;
	char *path;

	places_read(&places, NULL, NULL);
	found = places_choose(&places);
	if (strcmp(found, t->socket) == 0)
		return true;
	path = strdup(found);
	if (!path)
		return false;
	free(t->socket);
	t->socket = path;
	return true;
}

/* Connects and sends hello and attach; search_receive() handles the replies. 0, or an error. */
static int search_connect(struct tokend *t, const struct target *target, struct search *s)
{
	struct wire attach;
	struct fault fault;

	if (t->anywhere && !t->mapping && search_nobody(s) && !look_again(t))
		return handle_memory(t);
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
	s->answer_by = wait_earlier(wait_now() + HANDSHAKE_MS * WAIT_MS, search_give_up(s));
	return 0;
}

/* Handles the error in t->packet. 0: refused for now, continue; or an error. */
static int refused(struct tokend *t, struct search *s)
{
	int r = message_refused(t);

	if (!t->fault.passing || s->patience.never)
		return r;
	search_later(t, s, 0, r);
	return 0;
}

/* 1: a feed is in t->packet, 0: continue, or an error. */
static int search_receive(struct tokend *t, struct search *s)
{
	const struct wire *w = &t->packet->wire;

	switch (link_receive(s->fd, t->packet)) {
	case LINK_NOTHING:
	case LINK_WAKE:
		return 0;
	case LINK_CLOSED:
		search_later(t, s, ECONNRESET, 0);
		return 0;
	case LINK_FAULT:
		return message_invalid(t);
	case LINK_MESSAGE:
		break;
	}
	if (message_warning(t))
		return 0;
	if (w->op == WIRE_FEED)
		return 1;
	if (w->op == WIRE_ERROR)
		return refused(t, s);
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
	if (r == 0 && s->fd < 0 && now >= search_give_up(s))
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
			s->fd >= 0 ? s->answer_by : wait_earlier(s->retry, search_give_up(s));

		until = wait_earlier(until, waiting_at(&s->waiting));
		r = wait_ready(
			t, s->fd >= 0 ? s->fd : start_descriptor(t), POLLIN, wait ? until : 0);
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

/* The daemon may rename an unnamed run; the handle then uses the new name. */
static bool take_run(struct tokend *t, const struct wire *feed)
{
	char name[LIMIT_NAME_BYTES + 1];
	char *run;

	if (!wire_text(feed, WIRE_RUN, name, sizeof(name)) || strcmp(name, t->run) == 0)
		return true;
	run = wire_name_ok(name) ? strdup(name) : NULL;
	if (!run)
		return false;
	free(t->run);
	t->run = run;
	return true;
}

/* Makes a mapping and a cursor of the feed in t->packet; the caller owns both. Returns 1, or
 * EPROTOCOL, EMEMORY. */
static int attach_feed(
	struct tokend *t, const struct target *target, struct mapping **m, struct cursor *cursor)
{
	struct packet *p = t->packet;
	struct wire_bytes bytes = wire_bytes(&p->wire, WIRE_CURSOR);
	struct fault fault;

	if (p->fds != 2)
		return message_unknown(t, "a feed without two descriptors");
	*m = mapping_open(p->fd[0], wire_number(&p->wire, WIRE_META_BYTES), p->fd[1],
		wire_number(&p->wire, WIRE_DATA_BYTES), &fault);
	packet_close(p);
	if (!*m)
		return fault.code == FAULT_MEMORY ? handle_fault(t, &fault)
						  : message_unknown(t, fault.text);
	if (!cursor_decode(cursor, bytes.at, bytes.n, &fault)) {
		mapping_close(*m, true);
		return message_unknown(t, fault.text);
	}
	const struct ring_geometry *shape = &(*m)->ring.geometry;

	if (shape->rows != target->micro_batch ||
		shape->window_tokens != cursor->seq_len + cursor->extra ||
		(shape->token_bytes != 2 && shape->token_bytes != 4)) {
		mapping_close(*m, true);
		cursor_free(cursor);
		return message_unknown(t, "a ring of another shape than requested");
	}
	if (!take_run(t, &p->wire)) {
		mapping_close(*m, true);
		cursor_free(cursor);
		return message_unknown(t, "a run without a valid name");
	}
	t->contents = wire_number(&p->wire, WIRE_CONTENTS);
	(*m)->id = ++t->mappings;
	(*m)->session = wire_number(&p->wire, WIRE_ID);
	return 1;
}

int attach_find(struct tokend *t, const struct target *target, const struct patience *patience,
	struct mapping **m, struct cursor *cursor, int *fd)
{
	struct search s;

	search_begin(&s, patience);

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

/* The new ring must continue exactly where the old one stopped. */
static int check_revived(struct tokend *t, const struct mapping *m, const struct cursor *cursor)
{
	const struct ring_geometry *old = &t->mapping->ring.geometry, *new = &m->ring.geometry;

	if (cursor->next != t->taken)
		return message_unknown(t, "a feed at another position than requested");
	/* token_bytes may differ: it is that of the widest dataset in the config. */
	if (new->window_tokens != old->window_tokens)
		return handle_fail(t, TOKEND_EREFUSED, "window",
			"the restarted daemon serves windows of %u tokens instead of %u; "
			"restore its config, or attach again",
			new->window_tokens, old->window_tokens);
	if (old->documents && !new->documents)
		return handle_fail(t, TOKEND_EREFUSED, "documents",
			"the restarted daemon's config no longer has them for stream %s; set "
			"documents: true there",
			t->stream);
	if (old->loss_mask && !new->loss_mask)
		return handle_fail(t, TOKEND_EREFUSED, "loss_mask",
			"the restarted daemon's config no longer has it for stream %s; set "
			"loss_mask: true there",
			t->stream);
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

	const struct patience patience = {
		.connect_ms = t->deadline_ms, .deadline_ms = t->deadline_ms};

	if (!s->active)
		search_begin(s, &patience);
	/* A query was interrupted while its attach was under way, and batches were taken since. */
	if (s->position != t->taken)
		search_again(s);
	s->position = t->taken;

	int r = attach_step(t, &target, s, wait);

	/* The next call tries again. */
	if (r == 0 || r == TOKEND_EAGAIN || r == TOKEND_ESTART)
		return r;
	if (r == 1)
		r = attach_feed(t, &target, &m, &cursor);
	if (r == 1) {
		r = check_revived(t, m, &cursor);
		cursor_free(&cursor);
		if (r == 1) {
			attach_adopt(t, m, s->fd);
			s->fd = -1;
			t->reattached++;
			if (waiting_over(t, &s->waiting) < 0) {
				search_end(s);
				return TOKEND_EAGAIN;
			}
		} else {
			mapping_close(m, true);
		}
	}
	search_end(s);
	return r == 1 ? 1 : handle_latch(t, r);
}
