#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	OUTLIVED_MS = 1000,
	LEAVING_MOST_S = 2, /* then its memory is freed, even if reads into it are in flight */
};

bool session_is_live(const struct session *s)
{
	return s && s->fed && !s->connection->closing;
}

struct session *session_next(
	const struct control *control, uint32_t id, const struct stream *stream, const char *run)
{
	for (; id < LIMIT_SESSIONS; id++) {
		struct session *s = control->sessions.of[id];

		if (session_is_live(s) && (!stream || s->stream == stream) &&
			(!run || strcmp(s->run, run) == 0))
			return s;
	}
	return NULL;
}

/* The last batch of a stream that ends may have padding. */
uint64_t session_position(const struct session *s)
{
	uint64_t end = cursor_end(feed_cursor(s->feed)), next = s->next,
		 step = s->world * s->micro_batch, released = feed_counters(s->feed).released;

	return next >= end || released > (end - next) / step ? end : next + released * step;
}

/* ---- its lines in the log ---- */

void session_log_attach(const struct session *s)
{
	const struct connection *c = s->connection;

	log_client(c->uid, LOG_NOTE,
		"pid %d (uid %u) attached%s: stream %s, run %s, rank %" PRIu64 " of %" PRIu64
		", micro_batch %" PRIu64 ", from position %" PRIu64,
		(int)c->pid, (unsigned)c->uid, s->again ? " again" : "", s->stream->config->name,
		s->run, s->rank, s->world, s->micro_batch, s->next);
}

static void log_detach(const struct session *s)
{
	const struct connection *c = s->connection;
	struct feed_counters counters = feed_counters(s->feed);
	double lived_s = (double)(connection_now(c) - s->attached_ms) / 1e3;

	log_client(c->uid, LOG_NOTE,
		"pid %d (uid %u) detached%s: stream %s, run %s, rank %" PRIu64 " of %" PRIu64
		": %" PRIu64 " samples in %.1f s, waited %.1f s in %" PRIu64 " waits",
		(int)c->pid, (unsigned)c->uid, s->process_ended ? ", its process ended" : "",
		s->stream->config->name, s->run, s->rank, s->world,
		counters.released * s->micro_batch, lived_s, (double)count_of(&s->waited_ns) / 1e9,
		count_of(&s->waits));
}

/* ---- making and freeing ---- */

struct session *session_new(struct connection *c)
{
	struct sessions *all = &c->control->sessions;
	uint32_t id = 0;

	while (id < LIMIT_SESSIONS && all->of[id])
		id++;

	struct session *s = id < LIMIT_SESSIONS ? calloc(1, sizeof(*s)) : NULL;

	if (!s)
		return NULL;
	s->control = c->control;
	s->connection = c;
	s->id = id;
	s->memory.meta_fd = s->memory.data_fd = -1;
	all->of[id] = s;
	all->n++;
	c->session = s;
	return s;
}

void session_free(struct session *s)
{
	struct sessions *all = &s->control->sessions;

	assert(!s->fed && !s->order && all->of[s->id] == s);
	feed_free(s->feed);
	ring_memory_free(&s->memory);
	session_release(s);
	all->of[s->id] = NULL;
	all->n--;
	s->connection->session = NULL;
	free(s);
}

/* In the pool: freeing a large ring takes a while. */
static void unmap_work(uv_work_t *work)
{
	struct session *s = work->data;

	if (s->vacating)
		ring_memory_vacate(&s->memory);
	else
		ring_memory_free(&s->memory);
}

static void unmap_done(uv_work_t *work, int status)
{
	struct session *s = work->data;
	struct connection *c = s->connection;

	(void)status;
	c->jobs--;
	if (!s->vacating) {
		session_free(s);
		connection_settle(c);
		return;
	}
	session_release(s);
	s->vacating = false;
	if (!s->fed)
		session_end(s);
}

static void unmap(struct session *s)
{
	s->connection->jobs++;
	s->unmap.data = s;
	uv_queue_work(s->control->loop, &s->unmap, unmap_work, unmap_done);
}

void session_end(struct session *s)
{
	assert(!s->fed && s->connection->closing);
	feed_free(s->feed);
	s->feed = NULL;
	unmap(s);
}

void session_leave(struct session *s)
{
	if (s->fed) {
		struct feed_counters c = feed_counters(s->feed);

		/* From now on gauges_of() leaves it out. */
		s->stream->counts->published += c.published;
		s->stream->counts->released += c.released;
		log_detach(s);
		data_thread_tell(s, DATA_THREAD_DETACH);
	} else if (s->connection->jobs == 0) {
		session_end(s);
	} /* otherwise attach_done() ends it */
}

/* ---- news of the data thread ---- */

/* A shard has stopped the stream. */
static void send_failure(struct session *s)
{
	const struct session_failure *f = &s->failure;
	const char *shard = shard_list_name(&f->dataset->list, f->shard);
	char field[FAULT_FIELD_BYTES], sound[256] = "";
	struct fault fault;

	s->control->sessions.failures++;
	if (f->fault.code == FAULT_CHANGED) {
		/* the first position of the rank that was not published */
		uint64_t until = order_rank_position(s->next, feed_counters(s->feed).published,
			s->rank, s->world, s->micro_batch);

		s->control->comparison[s->stream->slot].stopped = true;
		snprintf(sound, sizeof(sound),
			"; positions of rank %" PRIu64 " before %" PRIu64
			" are sound, later ones were not served; " PHRASE_RESTORE,
			s->rank, until);
	}
	snprintf(field, sizeof(field), "dataset %s", f->dataset->config->name);
	fault_set(&fault, FAULT_DATA, field,
		"shard %s at token %" PRIu64 ": %s; stream %s stops here, nothing was skipped%s",
		shard, f->token, f->fault.text, s->stream->config->name, sound);
	connection_refuse(s->connection, 0, &fault);
}

void session_news(struct session *s, unsigned news)
{
	struct fault fault;

	assert(s->fed);
	if ((news & DATA_THREAD_FAILED) && !s->connection->closing)
		send_failure(s);
	if ((news & DATA_THREAD_HOSTILE) && !s->connection->closing) {
		fault_set(&fault, FAULT_PROTOCOL, "released",
			"the client wrote control words out of range into its ring");
		connection_refuse(s->connection, 0, &fault);
	}
	if (news & DATA_THREAD_GONE) {
		s->fed = false;
		if (!s->vacating)
			session_end(s);
	}
}

/* ---- once a second ---- */

/*
 * A client that undoes an edit continues with its former ring, without another attach. The run's
 * cursor in state_dir then has a mix that never acted, so the session's own is saved again. Only
 * after a second: the sessions of a killed process end in any order, and its edit may be valid.
 */
static void note_outlived(struct session *s, uint64_t now_ms)
{
	char bytes[LIMIT_CURSOR_BYTES];

	if (s->outlived_ms == 0 || now_ms - s->outlived_ms < OUTLIVED_MS)
		return;
	s->outlived_ms = 0;
	state_attached(s, bytes, cursor_encode(feed_cursor(s->feed), bytes, sizeof(bytes)));
}

void session_clock(struct session *s, uint64_t now_ms)
{
	if (!s->fed)
		return;
	if (s->connection->closing) {
		/* The client is gone, and storage does not answer. */
		if (++s->leaving_s == LEAVING_MOST_S) {
			s->vacating = true;
			unmap(s);
		}
		return;
	}

	struct feed_counters counters = feed_counters(s->feed);

	note_outlived(s, now_ms);
	/* A released slot is filled again at once: the ring of a slow trainer is full at every
	 * tick, like that of one that hangs. */
	if (!counters.full)
		s->full_since_ms = 0;
	else if (s->full_since_ms == 0 || counters.released != s->full_released)
		s->full_since_ms = now_ms;
	s->full_released = counters.released;
}

void sessions_check(const struct sessions *all)
{
	uint64_t bytes = all->staging_bytes;
	uint32_t n = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = all->of[id];

		if (!s)
			continue;
		assert(s->id == id && s->connection->session == s);
		assert(&s->control->sessions == all && s->control == s->connection->control);
		assert(!s->fed || (s->feed && s->stream && s->world > s->rank));
		assert(!s->vacating || s->connection->jobs > 0);
		assert(s->lent <= s->bytes && (s->lent == 0 || s->replaces));
		assert(!s->replaces ||
			(s->replaces != s && all->of[s->replaces->id] == s->replaces));
		bytes += s->bytes - s->lent;
		n++;
	}
	assert(n == all->n && bytes == all->memory_bytes);
}
