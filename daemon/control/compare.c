#include "daemon/control/control.h"

#include "daemon/catalog/current.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RELOADS_MS = 1000 }; /* between two of them */

/* A session that reads the stream's former shards. NULL: none. */
static const struct session *reader_of(const struct session *s)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *other = s->control->sessions.of[id];

		if (session_is_live(other) && other->stream == s->stream)
			return other;
	}
	return NULL;
}

static void reload(struct control *control, const struct session *s, const char *why)
{
	struct reload *r = &control->reload;

	if (r->running || uv_now(control->loop) - r->since_ms < RELOADS_MS)
		return;
	log_line(LOG_NOTE, "stream %s: %s: reading the config again before the next attach",
		s->stream->config->name, why);
	reload_begin(r);
}

/* Refuses the attach, because of @what. */
static void differ(struct control *control, struct compare_wait *wait, const struct fault *what)
{
	const struct session *s = wait->session, *other = reader_of(s);
	const char *refused = control->reload.refused;

	if (other) {
		fault_set(&wait->fault, FAULT_ATTACH, "shards",
			"%.400s; pid %d still reads the former shards of stream %s (run %s): end "
			"it, or restore them",
			what->text, (int)other->connection->pid, s->stream->config->name,
			other->run);
	} else if (control->comparing.stopped[s->stream->slot]) {
		fault_set(&wait->fault, FAULT_ATTACH, "shards",
			"%.400s, which stopped stream %s; restore it (cp -p), or have tokend read "
			"the new shards: kill -HUP %d",
			what->text, s->stream->config->name, (int)getpid());
	} else {
		reload(control, s, what->text);
		fault_set_passing(&wait->fault, FAULT_ATTACH, "shards",
			"%.300s; the config is read again before the next attach%s%.500s",
			what->text, refused[0] ? ", which failed: " : "", refused);
	}
}

static void go(struct control *control, struct compare_wait *wait, bool may)
{
	STAILQ_REMOVE(&control->comparing.waiting, wait, compare_wait, link);
	wait->go(wait, may);
}

/* In the pool. */
static void compare_work(uv_work_t *work)
{
	struct comparison *c = work->data;
	const struct stream *s = c->stream;

	c->same = true;
	for (uint32_t d = 0; c->same && d < s->config->datasets; d++)
		c->same = dataset_current(c->control->config, &s->dataset[d], &c->fault);
}

/* Back on the loop. */
static void compare_done(uv_work_t *work, int status)
{
	struct comparison *c = work->data;
	struct control *control = c->control;
	struct compare_wait *wait, *following;
	bool any = false;

	(void)status;
	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		if (wait->session->stream != c->stream)
			continue;
		any = true;
		if (!c->same)
			differ(control, wait, &c->fault);
		go(control, wait, c->same);
	}
	if (!c->same && !any)
		log_line(LOG_WARNING, "stream %s: %s: found after %d s; the next attach is refused",
			c->stream->config->name, c->fault.text, COMPARE_MS / 1000);
	c->stream = NULL;
}

void compare_begin(struct control *control, struct compare_wait *wait)
{
	struct comparison *c = &control->comparing.of[wait->session->stream->slot];
	uint64_t now = uv_now(control->loop);

	if (!c->stream) {
		*c = (struct comparison){
			.control = control, .stream = wait->session->stream, .since_ms = now};
		c->work.data = c;
		uv_queue_work(control->loop, &c->work, compare_work, compare_done);
	}
	wait->since_ms = c->since_ms;
	STAILQ_INSERT_TAIL(&control->comparing.waiting, wait, link);
	if (now - c->since_ms >= COMPARE_MS)
		go(control, wait, true);
}

void compare_clock(struct control *control)
{
	struct compare_wait *wait, *following;
	uint64_t now = uv_now(control->loop);

	for (wait = STAILQ_FIRST(&control->comparing.waiting); wait; wait = following) {
		following = STAILQ_NEXT(wait, link);
		if (wait->session->connection->closing || now - wait->since_ms >= COMPARE_MS)
			go(control, wait, true);
	}
}
