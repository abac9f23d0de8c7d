#include "daemon/control/compare.h"

#include "daemon/catalog/current.h"
#include "daemon/control/control.h"
#include "daemon/control/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comparison {
	uv_work_t work;
	struct control *control;
	struct generation *generation; /* held while it runs; otherwise NULL */
	const struct stream *stream;   /* that was compared last */
	bool stopped;		       /* a session of it, because a shard changed */
	uint64_t began_ms, fresh_until_ms;
	bool same;
	struct fault fault;
};

static void next(struct control *control);

void compare_init(struct comparing *all)
{
	STAILQ_INIT(&all->waiting);
}

void compare_free(struct comparing *all)
{
	for (unsigned i = 0; i < LIMIT_STREAMS; i++)
		free(all->of[i]);
}

static void go(struct control *control, struct compare_wait *wait, bool may)
{
	STAILQ_REMOVE(&control->comparing.waiting, wait, compare_wait, link);
	wait->go(wait, may);
}

/* A session that reads the stream's former shards. NULL: none. */
static const struct session *reader_of(const struct session *s)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *other = s->control->sessions.of[id];

		if (session_is_live(other) && other->generation == s->generation &&
			other->stream == s->stream)
			return other;
	}
	return NULL;
}

static void differ(struct control *control, struct compare_wait *wait, const struct fault *fault)
{
	const struct session *s = wait->session, *other = reader_of(s);

	if (other) {
		fault_set(&wait->fault, FAULT_ATTACH, "shards",
			"%.400s; pid %d still reads the former shards of stream %s (run %s): end "
			"it, or restore them",
			fault->text, (int)other->connection->pid, s->stream->config->name,
			other->run);
		go(control, wait, false);
		return;
	}
	if (control->comparing.stopped[s->stream->slot]) {
		fault_set(&wait->fault, FAULT_ATTACH, "shards",
			"%.400s, which stopped stream %s; restore it (cp -p), or have tokend read "
			"the new shards: kill -HUP %d",
			fault->text, s->stream->config->name, (int)getpid());
		go(control, wait, false);
		return;
	}
	if (wait->reloads > 0) {
		fault_set_passing(&wait->fault, FAULT_ATTACH, "shards",
			"%.400s, again after they were read; wait until they are complete",
			fault->text);
		go(control, wait, false);
		return;
	}
	log_line(LOG_NOTE, "stream %s: %s: reading the config again before the next attach",
		s->stream->config->name, fault->text);
	wait->fault = *fault;
	wait->reloading = true;
	if (!control->reload.running)
		reload_begin(&control->reload);
}

/* ---- comparing ---- */

/* In the pool. */
static void compare_work(uv_work_t *work)
{
	struct comparison *c = work->data;
	const struct stream *s = c->stream;

	c->same = true;
	for (uint32_t d = 0; c->same && d < s->config->datasets; d++)
		c->same = dataset_current(c->generation->config, &s->dataset[d], &c->fault);
}

/* Back on the loop. */
static void compare_done(uv_work_t *work, int status)
{
	struct comparison *c = work->data;
	struct control *control = c->control;
	struct compare_wait *wait, *following;
	uint64_t now = uv_now(control->loop), took = now - c->began_ms;
	bool waited = false;

	(void)status;
	control->comparing.running--;
	c->fresh_until_ms = c->same && took >= COMPARE_LONG_MS ? now + COMPARE_FRESH_MS : 0;
	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		if (wait->session->stream == c->stream && !wait->reloading) {
			waited = true;
			if (c->same)
				go(control, wait, true);
			else
				differ(control, wait, &c->fault);
		}
	}
	if (!c->same && !waited && took >= COMPARE_MS)
		log_line(LOG_WARNING,
			"stream %s: %s; comparing took %" PRIu64
			" s, so no attach waited for it: reload tokend, or write a manifest",
			c->stream->config->name, c->fault.text, took / 1000);
	generation_drop(c->generation);
	c->generation = NULL;
	next(control);
}

static struct comparison *comparison_of(struct control *control, const struct session *s)
{
	struct comparison **c = &control->comparing.of[s->stream->slot];

	if (!*c)
		*c = calloc(1, sizeof(**c));
	if (*c)
		(*c)->control = control;
	return *c;
}

/* Has a comparison taken too long? */
static bool hangs(const struct control *control)
{
	const struct comparing *all = &control->comparing;

	for (unsigned i = 0; i < LIMIT_STREAMS; i++)
		if (all->of[i] && all->of[i]->generation &&
			uv_now(control->loop) - all->of[i]->began_ms >= COMPARE_MS)
			return true;
	return false;
}

/* Begins the comparison that @wait needs, or lets it go on. */
static void serve(struct control *control, struct compare_wait *wait)
{
	const struct session *s = wait->session;
	struct comparison *c = comparison_of(control, s);
	uint64_t now = uv_now(control->loop);
	bool full = control->comparing.running == COMPARE_MOST;

	if (!c || (c->stream == s->stream && !c->generation && now < c->fresh_until_ms) ||
		(c->generation ? now - c->began_ms >= COMPARE_MS : full && hangs(control))) {
		go(control, wait, true);
		return;
	}
	if (c->generation || full)
		return;
	c->generation = generation_hold(s->generation);
	c->stream = s->stream;
	c->began_ms = now;
	c->work.data = c;
	control->comparing.running++;
	uv_queue_work(control->loop, &c->work, compare_work, compare_done);
}

static void next(struct control *control)
{
	struct compare_wait *wait, *following;

	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		if (!wait->reloading)
			serve(control, wait);
	}
}

void compare_begin(struct control *control, struct compare_wait *wait)
{
	STAILQ_INSERT_TAIL(&control->comparing.waiting, wait, link);
	serve(control, wait);
}

void compare_reloaded(struct control *control, const char *refused)
{
	struct compare_wait *wait, *following;

	if (!*refused)
		memset(control->comparing.stopped, 0, sizeof(control->comparing.stopped));
	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		if (!wait->reloading)
			continue;
		wait->reloading = false;
		wait->reloads++;
		if (*refused) {
			struct fault what = wait->fault;

			fault_set(&wait->fault, FAULT_ATTACH, "shards",
				"%.300s, and the config cannot be read again: %.600s", what.text,
				refused);
		}
		go(control, wait, !*refused);
	}
}

void compare_clock(struct control *control)
{
	struct compare_wait *wait, *following;
	uint64_t now = uv_now(control->loop);

	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		bool closing = wait->session->connection->closing;

		if (!closing && now - wait->since_ms < COMPARE_MS)
			continue;
		if (wait->reloading)
			fault_set_passing(&wait->fault, FAULT_ATTACH, "shards",
				"they changed, and the daemon still reads them again");
		go(control, wait, !wait->reloading);
	}
}
