/*
 * Everything that waits for the daemon: looking for one, attaching, asking. A daemon may die at any
 * instruction and come back with an empty memory, so nothing here depends on what the former one
 * knew: an attach says all there is to say.
 */
#include "client/lib/handle.h"

#include "client/lib/connect.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MS INT64_C(1000000)

enum {
	SLICE_MS = 1000,      /* of a wait: a lost wake-up costs at most this */
	IDLE_MS = 100,	      /* of a wait whose owner wants to be asked */
	BACKOFF_MS = 250,     /* between two tries, at most */
	REFUSED_MS = 1000,    /* after a passing refusal: each try costs the daemon an attach */
	HANDSHAKE_MS = 30000, /* from connect to feed: it may have to open its shards first */
};

int64_t handle_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int handle_doze(struct tokend *t, int fd, short events, int64_t until)
{
	const int64_t longest = (t->call.idle ? IDLE_MS : SLICE_MS) * MS;
	struct pollfd p = {fd, events, 0};

	for (;;) {
		int64_t left = until - handle_clock(),
			slice = left < 0 ? 0 : earlier(left, longest);
		const struct timespec time = {slice / (1000 * MS), slice % (1000 * MS)};
		int n = ppoll(&p, 1, &time, NULL);

		if (n > 0)
			return 1;
		if (left <= longest && n == 0)
			return 0;
		if (t->call.idle && t->call.idle(t->call.context))
			return handle_fail(t, TOKEND_EAGAIN, "interrupted");
	}
}

/* ---- what a daemon refuses ---- */

/* The error message in t->packet as one of ours, with "field: text" in why. */
static int refused(struct tokend *t)
{
	const struct wire *w = &t->packet->wire;
	struct wire_bytes code = wire_bytes(w, WIRE_CODE), field = wire_bytes(w, WIRE_FIELD),
			  text = wire_bytes(w, WIRE_TEXT);
	int error = TOKEND_EREFUSED;

	if (code.n == 4 && memcmp(code.at, "data", 4) == 0)
		error = TOKEND_EDATA;
	if (code.n == 8 && memcmp(code.at, "protocol", 8) == 0)
		error = TOKEND_EPROTOCOL;
	return handle_fail(t, error, "%.*s%s%.*s", (int)field.n, field.at, field.n ? ": " : "",
		(int)text.n, text.at);
}

static int not_ours(struct tokend *t, const char *what)
{
	return handle_fail(t, TOKEND_EPROTOCOL,
		"socket: what answers at %s is not a tokend we understand (%s): is it of another "
		"version?",
		t->socket, what);
}

/* What is in t->packet is not a message. */
static int no_message(struct tokend *t)
{
	const struct fault *fault = &t->packet->fault;
	char what[sizeof(fault->field) + sizeof(fault->text) + 2];

	snprintf(what, sizeof(what), "%s: %s", fault->field, fault->text);
	return not_ours(t, what);
}

/* ---- searching ---- */

static void search_begin(struct search *s, const struct patience *patience)
{
	int64_t now = handle_clock();

	*s = (struct search){
		.fd = -1,
		.active = true,
		.backoff_ms = 1,
		.since = now,
		.retry = now,
		.patience = *patience,
	};
}

void handle_stop_search(struct search *s)
{
	if (s->active && s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->active = false;
}

/*
 * This try failed, with errno @error or the passing refusal @refused in t->why. The next one
 * follows after half to all of the backoff, so that ranks do not come all at once.
 */
static void search_later(struct tokend *t, struct search *s, int error, int refused)
{
	const uint32_t most = refused ? REFUSED_MS : BACKOFF_MS;
	int64_t now = handle_clock(), backoff = s->backoff_ms * MS;
	uint64_t chance = order_mix64((uint64_t)now ^ (uint64_t)(uintptr_t)s);

	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	search_failed(t, s, error, refused);
	s->retry = now + backoff / 2 + (int64_t)(chance % (uint64_t)(backoff / 2));
	s->backoff_ms = s->backoff_ms * 2 < most ? s->backoff_ms * 2 : most;
}

/* The ring shall lie where its reader runs: that is where it is pinned to, or where it happens to
 * be. */
static void say_node(struct wire *w)
{
	unsigned cpu, node;

	if (getcpu(&cpu, &node) == 0)
		wire_set(w, WIRE_NODE, node);
}

static void say_attach(struct wire *w, const struct tokend *t, const struct target *target)
{
	*w = (struct wire){.op = WIRE_ATTACH};
	wire_set_text(w, WIRE_STREAM, t->stream);
	wire_set_text(w, WIRE_RUN, t->run);
	wire_set(w, WIRE_RANK, target->rank);
	wire_set(w, WIRE_WORLD, target->world);
	wire_set(w, WIRE_MICRO, target->micro_batch);
	wire_set(w, WIRE_PEER, t->peer);
	wire_set(w, WIRE_SLOTS, t->slots);
	if (t->helper)
		wire_set(w, WIRE_HELPER, 1);
	if (t->strict && !t->now) /* who was let in once may come back */
		wire_set(w, WIRE_STRICT, 1);
	say_node(w);
	/* A seek: for a moment there are two rings, which `memory:` counts as one. */
	if (t->fd >= 0 && t->now && t->now->session != GENERATION_UNNAMED)
		wire_set(w, WIRE_REPLACES, t->now->session);
	if (target->cursor)
		wire_set_bytes(w, WIRE_CURSOR, target->cursor, target->cursor_bytes);
	else if (target->tag)
		wire_set_text(w, WIRE_TAG, target->tag);
	else if (target->at_position)
		wire_set(w, WIRE_POSITION, target->position);
	else
		wire_set(w, WIRE_BEGIN, 1);
}

/* Connects and says all we have to say; what comes back is search_receive()'s. 0, or an error. */
static int search_connect(struct tokend *t, const struct target *target, struct search *s)
{
	struct wire attach;
	struct fault fault;

	s->fd = link_open(t->socket, LINK_TRAINER, t->out, &fault);
	if (s->fd < 0 && fault.code == FAULT_PERMISSION)
		return handle_fail(t, TOKEND_EREFUSED, "%s: %s", fault.field, fault.text);
	if (s->fd < 0) {
		search_later(t, s, fault.error, 0);
		return 0;
	}
	say_attach(&attach, t, target);

	/* If the daemon closed after hello, its reason can still be received. */
	int error = -link_send(s->fd, &attach, t->out);

	if (error != 0 && error != EPIPE && error != ECONNRESET) {
		search_later(t, s, error, 0);
		return 0;
	}
	s->answer_by = handle_clock() + HANDSHAKE_MS * MS;
	return 0;
}

/* The error message in t->packet. 0: it passes, go on. */
static int search_refused(struct tokend *t, struct search *s)
{
	const struct wire *w = &t->packet->wire;
	bool passing = wire_has(w, WIRE_PASSING) && wire_number(w, WIRE_PASSING) != 0;
	int r = refused(t);

	if (!passing || s->patience.never)
		return r;
	search_later(t, s, 0, r);
	return 0;
}

/* 1: a feed is in t->packet, 0: go on, or an error. */
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
		return no_message(t);
	case LINK_MESSAGE:
		break;
	}
	if (w->op == WIRE_FEED)
		return 1;
	if (w->op == WIRE_ERROR)
		return search_refused(t, s);
	if (w->op != WIRE_HELLO)
		return not_ours(t, wire_op_name(w->op));
	return wire_number(w, WIRE_VERSION_KEY) == WIRE_VERSION ? 0 : not_ours(t, "version");
}

static bool nobody_listens(const struct search *s)
{
	return s->error == ENOENT || s->error == ECONNREFUSED;
}

/* Begins the next try if it is due. 0, or an error. */
static int search_try(struct tokend *t, const struct target *target, struct search *s)
{
	int64_t now = handle_clock();
	int r = 0;

	if (s->fd >= 0 && now >= s->answer_by)
		search_later(t, s, ETIMEDOUT, 0);
	if (s->fd < 0 && now >= s->retry) {
		r = search_connect(t, target, s);
		if (r == 0 && s->fd < 0 && nobody_listens(s) && t->call.absent &&
			t->call.absent(t->call.context))
			return handle_fail(t, TOKEND_EAGAIN, "interrupted");
	}
	if (r == 0 && s->fd < 0 && now >= search_give_up(s))
		return search_gave_up(t, s);
	return r < 0 ? r : search_warn(t, s);
}

static int search_step(struct tokend *t, const struct target *target, struct search *s, bool wait)
{
	for (;;) {
		int r = search_try(t, target, s);

		if (r < 0)
			return r;

		int64_t until = s->fd >= 0 ? s->answer_by : earlier(s->retry, search_give_up(s));

		until = earlier(until, search_warn_at(s));
		r = handle_doze(t, s->fd, POLLIN, wait ? until : 0);
		if (r == 1)
			r = search_receive(t, s);
		else if (r == 0 && !wait)
			return 0;
		if (r != 0)
			return r;
	}
}

/* The daemon may call an unnamed run otherwise than we asked: from here on we ask for that. */
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

/* The feed in t->packet as a ring and a cursor. */
static int take_feed(
	struct tokend *t, const struct target *target, struct generation **g, struct cursor *cursor)
{
	struct packet *p = t->packet;
	struct wire_bytes bytes = wire_bytes(&p->wire, WIRE_CURSOR);
	struct fault why;
	char text[200];
	bool no_memory;

	if (p->fds != 2)
		return not_ours(t, "a feed without its two segments");
	*g = generation_map(p->fd[0], wire_number(&p->wire, WIRE_META_BYTES), p->fd[1],
		wire_number(&p->wire, WIRE_DATA_BYTES), &no_memory, text, sizeof(text));
	packet_close(p);
	if (!*g)
		return no_memory ? handle_fail(t, TOKEND_EMEMORY, "ring: %s", text)
				 : not_ours(t, text);
	if (!cursor_decode(cursor, bytes.at, bytes.n, &why)) {
		generation_free(*g, true);
		return not_ours(t, why.text);
	}
	const struct ring_geometry *shape = &(*g)->ring.geometry;

	if (shape->rows != target->micro_batch ||
		shape->window_tokens != cursor->seq_len + cursor->extra ||
		(shape->token_bytes != 2 && shape->token_bytes != 4)) {
		generation_free(*g, true);
		cursor_free(cursor);
		return not_ours(t, "a ring of another shape");
	}
	if (!take_run(t, &p->wire)) {
		generation_free(*g, true);
		cursor_free(cursor);
		return not_ours(t, "a run without a name");
	}
	(*g)->id = ++t->generations;
	(*g)->session =
		wire_has(&p->wire, WIRE_ID) ? wire_number(&p->wire, WIRE_ID) : GENERATION_UNNAMED;
	return 1;
}

int handle_find(struct tokend *t, const struct target *target, const struct patience *patience,
	struct generation **g, struct cursor *cursor, int *fd)
{
	struct search s;

	search_begin(&s, patience);

	int r = search_step(t, target, &s, true);

	if (r == 1)
		r = take_feed(t, target, g, cursor);
	if (r == 1) {
		*fd = s.fd;
		s.fd = -1;
	}
	handle_stop_search(&s);
	return r;
}

/* ---- a daemon that was lost ---- */

void handle_lose(struct tokend *t)
{
	if (t->fd >= 0)
		close(t->fd);
	t->fd = -1;
	t->late = 0;
}

/* The new ring must go on exactly where the old one stopped. */
static int check_revived(struct tokend *t, const struct generation *g, const struct cursor *cursor)
{
	const struct ring_geometry *old = &t->now->ring.geometry, *new = &g->ring.geometry;

	if (cursor->next != t->taken)
		return not_ours(t, "a feed at another position");
	if (new->window_tokens != old->window_tokens || new->token_bytes != old->token_bytes)
		return handle_fail(t, TOKEND_EREFUSED,
			"dtype: the restarted daemon serves windows of %u × %u bytes, before it "
			"were %u × %u",
			new->window_tokens, new->token_bytes, old->window_tokens, old->token_bytes);
	if (old->documents && !new->documents)
		return handle_fail(t, TOKEND_EREFUSED,
			"documents: the restarted daemon's config has them no more for stream %s: "
			"it needs "
			"documents: "
			"true there",
			t->stream);
	if (old->loss_mask && !new->loss_mask)
		return handle_fail(t, TOKEND_EREFUSED,
			"loss_mask: the restarted daemon's config has it no more for stream %s: it "
			"needs "
			"loss_mask: true there",
			t->stream);
	return 1;
}

int handle_revive(struct tokend *t, bool wait)
{
	struct search *s = &t->search;
	struct generation *g = NULL;
	struct cursor cursor = {0};

	if (t->failed)
		return handle_failed(t);

	const struct cursor *place = handle_speak(t, t->taken);

	if (!place)
		return TOKEND_EMEMORY;

	const struct target target = {
		.cursor = t->bytes,
		.cursor_bytes = cursor_encode(place, t->bytes, LIMIT_CURSOR_BYTES),
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch,
	};

	const struct patience patience = {
		.connect_ms = t->deadline_ms, .deadline_ms = t->deadline_ms};

	if (!s->active)
		search_begin(s, &patience);

	int r = search_step(t, &target, s, wait);

	if (r == 0 || r == TOKEND_EAGAIN)
		return r;
	if (r == 1)
		r = take_feed(t, &target, &g, &cursor);
	if (r == 1) {
		assert(g);
		r = check_revived(t, g, &cursor);
		cursor_free(&cursor);
		if (r == 1) {
			handle_adopt(t, g, s->fd);
			s->fd = -1;
			t->reattached++;
		} else {
			generation_free(g, true);
		}
	}
	handle_stop_search(s);
	return r == 1 ? 1 : handle_latch(t, r);
}

/* ---- talking to the one we have ---- */

/* Is the message in t->packet the answer to a question that was interrupted? All are answered once.
 */
static bool late_answer(struct tokend *t)
{
	const struct wire *w = &t->packet->wire;
	struct wire_bytes code = wire_bytes(w, WIRE_CODE);
	bool unsaved =
		w->op == WIRE_ERROR && code.n == 10 && memcmp(code.at, "checkpoint", 10) == 0;

	if (t->late == 0 || (w->op != WIRE_SAVED && w->op != WIRE_REQUEST &&
				    w->op != WIRE_DESCRIBED && !unsaved))
		return false;
	t->late--;
	return true;
}

/* Is the message in t->packet a warning? It is passed on. */
static bool take_warning(struct tokend *t)
{
	struct wire_bytes text = wire_bytes(&t->packet->wire, WIRE_TEXT);
	char line[LIMIT_TEXT_BYTES];

	if (t->packet->wire.op != WIRE_WARNING)
		return false;
	snprintf(line, sizeof(line), "%.*s", (int)text.n, text.at);
	if (t->call.notice)
		t->call.notice(t->call.context, line);
	else if (t->call.warn)
		t->call.warn(t->call.warn_context, line);
	return true;
}

void handle_hear_warnings(struct tokend *t)
{
	while (t->fd >= 0) {
		enum link_event what = link_receive(t->fd, t->packet);

		if (what != LINK_MESSAGE && what != LINK_WAKE)
			return;
		if (what == LINK_MESSAGE)
			take_warning(t);
	}
}

int handle_listen(struct tokend *t)
{
	for (;;) {
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
			return 0;
		case LINK_WAKE:
			break;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, no_message(t));
		case LINK_MESSAGE:
			if (!take_warning(t) && !late_answer(t) && t->packet->wire.op == WIRE_ERROR)
				return handle_latch(t, refused(t));
			break;
		}
	}
}

static int tell(struct tokend *t, const struct wire *wire)
{
	for (;;) {
		int error = link_send(t->fd, wire, t->out);

		if (error == 0)
			return 1;
		if (error == -EMSGSIZE)
			return handle_fail(t, TOKEND_EARGUMENT, "message: longer than %d bytes",
				LIMIT_PACKET_BYTES);
		if (error != -EAGAIN) {
			handle_lose(t);
			return 0;
		}

		int r = handle_doze(t, t->fd, POLLOUT, handle_clock() + SLICE_MS * MS);

		if (r < 0)
			return r;
	}
}

static bool answers(const struct wire *question, const struct wire *w, enum wire_op answer)
{
	struct wire_bytes asked = wire_bytes(question, WIRE_TAG), got = wire_bytes(w, WIRE_TAG);

	return w->op == answer &&
	       (!wire_has(question, WIRE_TAG) ||
		       (asked.n == got.n && memcmp(asked.at, got.at, got.n) == 0));
}

/*
 * 1: it is in t->packet, 0: the daemon is lost, or an error. Without a @question: until those that
 * were interrupted are answered, for an answer does not say which question of its kind it is to.
 */
static int await(struct tokend *t, const struct wire *question, enum wire_op answer)
{
	while (question || t->late > 0) {
		int r = handle_doze(t, t->fd, POLLIN, handle_clock() + SLICE_MS * MS);

		if (r < 0)
			return r;
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
		case LINK_WAKE:
			continue;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, no_message(t));
		case LINK_MESSAGE:
			break;
		}
		if (take_warning(t) || late_answer(t))
			continue;
		if (question && answers(question, &t->packet->wire, answer))
			return 1;
		if (t->packet->wire.op == WIRE_ERROR) {
			r = refused(t);
			return r == TOKEND_EDATA ? handle_latch(t, r) : r;
		}
	}
	return 1;
}

int handle_ask(struct tokend *t, const struct wire *question, enum wire_op answer)
{
	for (;;) {
		int r = t->fd < 0 ? handle_revive(t, true) : 1;

		if (r == 1)
			r = await(t, NULL, answer);
		if (r == 1)
			r = tell(t, question);
		if (r == 1) {
			r = await(t, question, answer);
			t->late += r == TOKEND_EAGAIN;
		}
		if (r != 0)
			return r == 1 ? 0 : r;
	}
}
