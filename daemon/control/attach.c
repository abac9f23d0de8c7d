/*
 * An attach has four steps. On the loop: all checks that need no waiting. In libuv's pool: the
 * stream's shards are compared with what their paths hold now; a client that seeks, or attaches
 * again, skips that. In the pool: the cursor and the ring are made. Back on the loop: the data
 * thread gets the feed, and the client the ring's two descriptors. An attach at a snapshot reads
 * state_dir before the second step.
 *
 * The pool has a thread for each stream and some more, so a stream whose storage hangs delays no
 * other. Its own attaches go on a second or two after the comparison began, because the reader
 * compares each shard that it opens.
 */
#include "daemon/control/control.h"
#include "proto/cursor.h"
#include "proto/order.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	RELOADS_MS = 1000, /* between two reloads because of changed shards */
	COMPARE_TICKS = 2, /* attaches wait for a comparison until so many seconds have begun */
};

/* An attach, from its message to its reply. */
struct attach_job {
	struct state_job job; /* first member: loads the snapshot */
	uv_work_t work;
	STAILQ_ENTRY(attach_job) waits; /* for the comparison of its stream */
	struct session *session;	/* owned until it is attached */
	struct ring_geometry geometry;
	bool replaces; /* another ring of the same client, which ends soon */
	struct state_run run;
	char tag[LIMIT_NAME_BYTES + 1]; /* of a snapshot of that run, or "" */
	uint64_t position;		/* of an attach without a cursor */
	size_t cursor_bytes;		/* 0: there is none */
	char bytes[LIMIT_CURSOR_BYTES]; /* the cursor, as received and as sent */
	struct cursor cursor;
	uint64_t contents;
	struct wire_shards shards[LIMIT_DATASETS];
	bool ok;
	struct fault fault; /* unless ok */
};

/* ---- the attach message ---- */

/* Reads TAG, or RUN/TAG, a snapshot of another run. */
static bool read_tag(struct attach_job *job, const struct wire *w)
{
	const struct session *s = job->session;
	char text[2 * LIMIT_NAME_BYTES + 2], *slash, *tag = text;

	job->run = state_run(s);
	if (!wire_text(w, WIRE_TAG, text, sizeof(text)))
		return fault_set(&job->fault, FAULT_ATTACH, "tag", "longer than %zu bytes",
			sizeof(text) - 1);
	slash = strchr(text, '/');
	if (slash) {
		*slash = 0;
		tag = slash + 1;
	}
	if (!wire_name_ok(tag) || (slash && !wire_name_ok(text)))
		return fault_set(&job->fault, FAULT_ATTACH, "tag", "not TAG or RUN/TAG");
	memcpy(job->tag, tag, strlen(tag) + 1);
	if (!slash)
		return true;
	memcpy(job->run.name, text, strlen(text) + 1);
	return runs_name(s->control->config, s->connection->uid, job->run.name, &job->fault);
}

/* Reads where it begins. */
static bool read_start(struct attach_job *job, const struct wire *w)
{
	const uint64_t starts = WIRE_BIT(WIRE_BEGIN) | WIRE_BIT(WIRE_POSITION) |
				WIRE_BIT(WIRE_TAG) | WIRE_BIT(WIRE_CURSOR);
	struct wire_bytes cursor;

	if (__builtin_popcountll(w->has & starts) != 1)
		return fault_set(&job->fault, FAULT_ATTACH, "start",
			"give exactly one of begin, position, tag and cursor");
	if (wire_has(w, WIRE_TAG))
		return read_tag(job, w);
	if (wire_has(w, WIRE_POSITION))
		job->position = wire_number(w, WIRE_POSITION);
	if (!wire_has(w, WIRE_CURSOR))
		return true;
	cursor = wire_bytes(w, WIRE_CURSOR);
	if (cursor.n < 1 || cursor.n > sizeof(job->bytes))
		return fault_set(&job->fault, FAULT_ATTACH, "cursor",
			"%u bytes; a cursor has 1 to %d", cursor.n, LIMIT_CURSOR_BYTES);
	memcpy(job->bytes, cursor.at, cursor.n);
	job->cursor_bytes = cursor.n;
	return true;
}

static bool read_coordinates(struct session *s, const struct wire *w, struct fault *fault)
{
	s->rank = wire_number(w, WIRE_RANK);
	s->world = wire_number(w, WIRE_WORLD);
	s->micro_batch = wire_number(w, WIRE_MICRO);
	s->peer = wire_number(w, WIRE_PEER);
	s->slots = wire_number(w, WIRE_SLOTS);
	s->helper = wire_number(w, WIRE_HELPER) != 0;
	s->again = wire_number(w, WIRE_AGAIN) != 0;
	s->strict = wire_number(w, WIRE_STRICT) != 0;
	if (!wire_text(w, WIRE_RUN, s->run, sizeof(s->run)) || !wire_name_ok(s->run))
		return fault_set(fault, FAULT_ATTACH, "run", "must be " PHRASE_NAME);
	s->stream = connection_stream(s->connection, w, FAULT_ATTACH, fault);
	if (!s->stream)
		return false;
	if (s->world < 1 || s->world > LIMIT_WORLD)
		return fault_set(
			fault, FAULT_ATTACH, "world", "%" PRIu64 " is not 1 to 2^32", s->world);
	if (s->rank >= s->world)
		return fault_set(fault, FAULT_ATTACH, "rank",
			"%" PRIu64 " is not below world, %" PRIu64, s->rank, s->world);
	return runs_name(s->control->config, s->connection->uid, s->run, fault);
}

/* ---- in the pool: the cursor and the ring ---- */

static bool make_cursor(struct attach_job *job)
{
	const struct cursor *begin = &job->session->stream->begin;
	struct fault *fault = &job->fault;

	if (job->cursor_bytes == 0 && !cursor_copy(&job->cursor, begin))
		return fault_memory(fault);
	if (job->cursor_bytes == 0
			? cursor_seek(&job->cursor, job->position, fault)
			: cursor_decode(&job->cursor, job->bytes, job->cursor_bytes, fault) &&
				  cursor_belongs(&job->cursor, begin, fault))
		return true;
	if (job->tag[0])
		fault_prefix(fault, "snapshot %s: ", job->tag);
	return false;
}

/*
 * Beyond the cgroup's limit the kernel kills instead of failing. `memory:` alone is not enough,
 * because other processes of the cgroup may have taken memory since the start. A ring that replaces
 * another one may use the reserved part, too.
 */
static bool fits_cgroup(struct attach_job *job)
{
	const struct session *s = job->session;
	struct cgroup_room room;

	if (!cgroup_room(s->control->options->cgroup, &room))
		return true;
	if (job->replaces)
		room.left = room.limit > room.used ? room.limit - room.used : 0;
	return s->bytes <= room.left ||
	       fault_set(&job->fault, FAULT_MEMORY, "slots",
		       "a ring of %" PRIu64 " slots needs %" PRIu64 " bytes, but only %" PRIu64
		       " of the %" PRIu64
		       " bytes of cgroup %s are left; raise its limit, or " PHRASE_SLOTS,
		       s->slots, s->bytes, room.left, room.limit, room.path);
}

static bool make_memory(struct attach_job *job)
{
	/* One at a time, so that two do not count on the same room. */
	static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&making);
	bool made = fits_cgroup(job) &&
		    ring_memory_new(&job->session->memory, &job->geometry, &job->fault);

	pthread_mutex_unlock(&making);
	if (!made) {
		job->fault.code = FAULT_MEMORY;
		job->fault.passing = true;
	}
	return made;
}

uint64_t attach_shards(
	const struct stream *stream, const struct cursor *cursor, struct wire_shards *out)
{
	const struct config_stream *config = stream->config;
	const struct dataset *dataset[LIMIT_DATASETS];
	uint64_t eos = config->documents && config->has_eos ? 1 + config->eos : 0;
	uint64_t contents = order_derive(
		eos, config->documents, config->loss_mask, config->has_vocab, config->vocab);

	stream_map(stream, cursor, dataset);
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		const struct dataset *of = dataset[d];

		out[d] = (struct wire_shards){.name = cursor->order[d].name_hash};
		if (!of)
			continue;
		uint64_t notes = order_derive(of->annotated, of->masks, of->bounds);

		contents = order_derive(contents, d, of->contents, notes);
		out[d].tokens = of->contents ? of->contents << 3 | of->known_by : 0;
		out[d].files = (uint32_t)of->files;
		if (config->documents || config->loss_mask)
			out[d].notes = (uint16_t)(1 | order_derive(notes, of->side_files));
		if (config->documents)
			out[d].eos = (uint16_t)(1 | order_derive(eos) << 1);
	}
	return contents;
}

static bool make_feed(struct attach_job *job)
{
	struct session *s = job->session;
	const struct dataset *dataset[LIMIT_DATASETS];
	struct feed_source source[LIMIT_DATASETS];
	unsigned places = s->control->options->reading->store_places;

	stream_map(s->stream, &job->cursor, dataset);
	job->contents = attach_shards(s->stream, &job->cursor, job->shards);
	for (uint32_t d = 0; d < job->cursor.datasets; d++) {
		const struct dataset *of = dataset[d];

		source[d] = (struct feed_source){.table = of ? &of->table : NULL, .owner = of};
		if (of && of->bucket)
			source[d].place = 1 + store_number(of->bucket) % places;
	}
	s->feed = feed_new(&job->cursor, &(struct feed_options){
						 .id = s->id,
						 .stream = s->stream->slot,
						 .user = s->connection->uid,
						 .rank = s->rank,
						 .world = s->world,
						 .ring = s->memory.ring,
						 .source = source,
					 });
	return s->feed || fault_memory(&job->fault);
}

static void attach_work(uv_work_t *work)
{
	struct attach_job *job = work->data;

	job->ok = make_cursor(job) && make_memory(job) && make_feed(job);
	if (!job->ok)
		return;
	job->session->next = job->cursor.next;
	job->cursor_bytes = cursor_encode(&job->cursor, job->bytes, sizeof(job->bytes));
	assert(job->cursor_bytes > 0);
}

/* ---- the reply ---- */

static void send_feed(struct attach_job *job)
{
	struct session *s = job->session;
	struct wire w = {.op = WIRE_FEED};
	int fds[] = {s->memory.meta_fd, s->memory.data_fd};

	wire_set_bytes(&w, WIRE_CURSOR, job->bytes, job->cursor_bytes);
	wire_set(&w, WIRE_CONTENTS, job->contents);
	wire_set_bytes(&w, WIRE_SHARDS, job->shards, job->cursor.datasets * sizeof(job->shards[0]));
	wire_set(&w, WIRE_END, cursor_end(&job->cursor));
	wire_set(&w, WIRE_META_BYTES, job->geometry.meta_bytes);
	wire_set(&w, WIRE_DATA_BYTES, job->geometry.data_bytes);
	wire_set(&w, WIRE_ID, s->id);
	wire_set_text(&w, WIRE_RUN, s->run);
	connection_send_fds(s->connection, job->job.serial, &w, fds);
	ring_memory_close_fds(&s->memory);
}

static void begin(struct attach_job *job)
{
	struct session *s = job->session;

	s->fed = true;
	s->attached_ms = connection_now(s->connection);
	s->stream->counts->attaches++;
	s->stream->counts->attaches_again += s->again;
	session_log_attach(s);
	data_thread_tell(s, DATA_THREAD_ATTACH);
	request_join(s);
	/* A send may find that the client is gone. Then the session leaves at once, so it must have
	 * begun. The reply is last, so that the trainer sees the warnings now. */
	warn_attached(s, &job->cursor);
	state_attached(s, job->bytes, job->cursor_bytes);
	send_feed(job);
}

static void attach_job_free(struct attach_job *job)
{
	cursor_free(&job->cursor);
	free(job);
}

/* Ends an attach that has gone on: see proceed(). */
static void finish(struct attach_job *job)
{
	struct connection *c = job->session->connection;

	c->jobs--;
	if (c->closing)
		session_end(job->session);
	else if (!job->ok)
		connection_refuse(c, job->job.serial, &job->fault);
	else
		begin(job);
	attach_job_free(job);
}

/* Back on the loop. */
static void attach_done(uv_work_t *work, int status)
{
	(void)status;
	finish(work->data);
}

static void make(struct attach_job *job)
{
	uv_queue_work(job->session->control->loop, &job->work, attach_work, attach_done);
}

/* ---- the stream's shards, as they are now ---- */

/* Words why an attach is refused: @what has changed. True: nobody has to act, as the config is read
 * again. */
static bool word_change(struct attach_job *job, const char *what)
{
	const struct session *s = job->session;
	/* It reads the former shards. */
	const struct session *other = session_next(s->control, 0, s->stream, NULL);
	const char *stream = s->stream->config->name, *refused = s->control->reload.refused;

	if (other)
		return fault_set(&job->fault, FAULT_ATTACH, "shards",
			"%.400s; pid %d still reads the former shards of stream %s (run %s): end "
			"it, or restore them",
			what, (int)other->connection->pid, stream, other->run);
	if (s->control->comparison[s->stream->slot].stopped)
		return fault_set(&job->fault, FAULT_ATTACH, "shards",
			"%.400s, which stopped stream %s; restore it (cp -p over it), or have "
			"tokend read what is there: kill -HUP %d",
			what, stream, (int)getpid());
	fault_set_passing(&job->fault, FAULT_ATTACH, "shards",
		"%.300s; the config is read again before the next attach%s%.500s", what,
		refused[0] ? ", which failed: " : "", refused);
	return true;
}

/* The attaches that wait for it go on, or are refused. */
static void compared(struct comparison *c, bool same)
{
	struct reload *r = NULL;
	struct attach_job *job;

	while ((job = STAILQ_FIRST(&c->waiting))) {
		STAILQ_REMOVE_HEAD(&c->waiting, waits);
		if (same) {
			make(job);
			continue;
		}
		if (word_change(job, c->fault.text))
			r = &job->session->control->reload;
		finish(job);
	}
	if (!r || r->running || uv_now(r->control->loop) - r->since_ms < RELOADS_MS)
		return;
	log_line(LOG_NOTE, "stream %s: %s: reading the config again before the next attach",
		c->stream->config->name, c->fault.text);
	reload_begin(r);
}

static void compare_work(uv_work_t *work)
{
	struct comparison *c = work->data;
	const struct stream *s = c->stream;

	c->same = true;
	for (uint32_t d = 0; c->same && d < s->config->datasets; d++)
		c->same = dataset_current(&s->dataset[d], &c->fault);
}

static void compare_done(uv_work_t *work, int status)
{
	struct comparison *c = work->data;

	(void)status;
	c->running = false;
	if (!c->same && STAILQ_EMPTY(&c->waiting))
		log_line(LOG_WARNING, "stream %s: %s: found after %u s; the next attach is refused",
			c->stream->config->name, c->fault.text, c->ticks);
	compared(c, c->same);
}

void compare_clock(struct control *control)
{
	for (uint32_t slot = 0; slot < control->config->streams; slot++) {
		struct comparison *c = &control->comparison[slot];

		if (c->running && ++c->ticks >= COMPARE_TICKS)
			compared(c, true);
	}
}

/* The attach goes on: from now on it counts as a job of its connection, and finish() ends it. A
 * seek keeps the shards that its process reads: the reader compares what it opens. */
static void proceed(struct attach_job *job)
{
	const struct session *s = job->session;
	struct control *control = s->control;
	struct comparison *c = &control->comparison[s->stream->slot];

	s->connection->jobs++;
	if (job->replaces || s->again || (c->running && c->ticks >= COMPARE_TICKS)) {
		make(job);
		return;
	}
	if (!c->running) {
		c->work.data = c;
		c->stream = s->stream;
		c->running = true;
		c->ticks = 0;
		STAILQ_INIT(&c->waiting);
		uv_queue_work(control->loop, &c->work, compare_work, compare_done);
	}
	STAILQ_INSERT_TAIL(&c->waiting, job, waits);
}

/* ---- at a snapshot ---- */

/* In the pool. */
static void load_work(struct state_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	struct fault *fault = &job->fault;

	job->cursor_bytes = state_load(&job->run, job->tag, job->bytes, fault);
	if (job->cursor_bytes > 0)
		return;
	snprintf(fault->field, sizeof(fault->field), "tag");
	if (!fault->passing)
		fault->code = FAULT_CURSOR;
}

/* Ends an attach whose connection has no job in the pool. */
static void refuse(struct connection *c, struct attach_job *job)
{
	session_free(job->session);
	connection_refuse(c, job->job.serial, &job->fault);
	attach_job_free(job);
}

/* Back on the loop. */
static void load_done(struct state_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	struct connection *c = work->connection;

	if (!c) /* it is closed, and its session was freed with it */
		attach_job_free(job);
	else if (job->cursor_bytes == 0)
		refuse(c, job);
	else
		proceed(job);
}

/* ---- on the loop, without waiting ---- */

static bool may_attach(struct attach_job *job, const struct wire *w)
{
	struct session *s = job->session;
	struct fault *fault = &job->fault;

	return read_coordinates(s, w, fault) && read_start(job, w) && twins_allow(s, fault) &&
	       session_reserve(s, w, &job->geometry, fault);
}

void session_attach(struct connection *c, const struct wire *w)
{
	struct attach_job *job = calloc(1, sizeof(*job));
	struct session *s = job ? session_new(c) : NULL;
	struct fault fault;

	if (!s) {
		fault_set_passing(&fault, FAULT_MEMORY, "sessions",
			"no room for another session; at most %d are served", LIMIT_SESSIONS);
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
		free(job);
		return;
	}
	job->session = s;
	job->work.data = job;
	job->job.serial = wire_number(w, WIRE_SERIAL);
	if (!may_attach(job, w)) {
		refuse(c, job);
		return;
	}
	job->replaces = s->replaces != NULL;
	if (!job->tag[0]) {
		proceed(job);
		return;
	}
	job->job.work = load_work;
	job->job.done = load_done;
	state_give(&s->control->state, c, &job->job);
}
