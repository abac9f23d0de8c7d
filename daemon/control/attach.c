#include "daemon/catalog/current.h"
#include "daemon/control/control.h"
#include "proto/cursor.h"
#include "proto/order.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum start { START_BEGIN, START_POSITION, START_TAG, START_CURSOR };

struct attach_job {
	struct state_job job; /* first member: loads the snapshot */
	uv_work_t work;
	struct connection *connection;
	struct session *session; /* owned until it is attached */
	struct ring_geometry geometry;
	enum start start;
	uint64_t position;
	struct state_run run; /* whose snapshot it is */
	char tag[LIMIT_NAME_BYTES + 1];
	size_t cursor_bytes;
	struct cursor cursor;
	uint64_t contents;
	bool ok;
	bool replaces;			/* another ring of the same client, which ends soon */
	STAILQ_ENTRY(attach_job) waits; /* for the comparison of its stream */
	uint64_t compared_ms;		/* when that began */
	struct fault fault;
	char bytes[LIMIT_CURSOR_BYTES]; /* the cursor, as received and as sent */
};

/* ---- twins ---- */

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
static void name_process(char *to, size_t capacity, const struct connection *c)
{
	const char *host = c->host[0] ? c->host : "an unnamed host";

	if (c->pid > 0)
		snprintf(to, capacity, "pid %d on %s", (int)c->pid, host);
	else
		snprintf(to, capacity, "a process in another PID namespace on %s", host);
}

/* False: it is strict, and another process reads for its rank. */
static bool twins_allow(const struct session *s, struct fault *fault)
{
	const struct session *other = s->strict && !s->helper ? find_twin(s, false) : NULL;
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

static void warn_of_twin(struct session *s, const struct session *other)
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

static void look_for_twin(struct session *s)
{
	struct session *other = find_twin(s, true);

	if (!other)
		return;
	warn_of_twin(s, other);
	if (!s->connection->closing && !other->connection->closing)
		warn_of_twin(other, s);
}

/* @s is fed now, and inherits the warnings of the session that it replaces. */
static void twins_join(struct session *s)
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

/* The client of @s got its feed. May close the connection. */
static void twins_joined(struct session *s)
{
	if (!s->sought && !s->connection->closing)
		look_for_twin(s);
}

void twins_clock(struct session *s, uint64_t now_ms)
{
	if (!s->sought || !s->fed || s->left || s->connection->closing ||
		now_ms - s->fed_since_ms < SETTLED_MS)
		return;
	s->sought = false;
	look_for_twin(s);
}

/* ---- the attach message ---- */

static void attach_job_free(struct attach_job *job)
{
	cursor_free(&job->cursor);
	free(job);
}

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

static bool read_start(struct attach_job *job, const struct wire *w)
{
	static const enum wire_key keys[] = {WIRE_BEGIN, WIRE_POSITION, WIRE_TAG, WIRE_CURSOR};
	unsigned given = 0;

	for (unsigned i = 0; i < 4; i++) {
		if (!wire_has(w, keys[i]))
			continue;
		given++;
		job->start = (enum start)i;
	}
	if (given != 1)
		return fault_set(&job->fault, FAULT_ATTACH, "start",
			"give exactly one of begin, position, tag and cursor");
	if (job->start == START_POSITION)
		job->position = wire_number(w, WIRE_POSITION);
	if (job->start == START_TAG)
		return read_tag(job, w);
	if (job->start == START_CURSOR) {
		struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);

		if (b.n > sizeof(job->bytes))
			return fault_set(&job->fault, FAULT_ATTACH, "cursor",
				"%u bytes; a cursor has at most %d", b.n, LIMIT_CURSOR_BYTES);
		memcpy(job->bytes, b.at, b.n);
		job->cursor_bytes = b.n;
	}
	return true;
}

static bool read_coordinates(
	struct attach_job *job, const struct wire *w, const struct catalog *catalog)
{
	struct session *s = job->session;
	struct fault *fault = &job->fault;
	char name[LIMIT_NAME_BYTES + 1], list[NEAREST_LIST_BYTES];

	s->rank = wire_number(w, WIRE_RANK);
	s->world = wire_number(w, WIRE_WORLD);
	s->micro_batch = wire_number(w, WIRE_MICRO);
	s->peer = wire_number(w, WIRE_PEER);
	s->slots = wire_number(w, WIRE_SLOTS);
	s->helper = wire_number(w, WIRE_HELPER) != 0;
	s->again = wire_number(w, WIRE_AGAIN) != 0;
	s->strict = wire_has(w, WIRE_STRICT) && wire_number(w, WIRE_STRICT) != 0;
	s->node = wire_has(w, WIRE_NODE) ? wire_number(w, WIRE_NODE) : RING_MEMORY_ANYWHERE;
	if (!wire_text(w, WIRE_RUN, s->run, sizeof(s->run)) || !wire_name_ok(s->run))
		return fault_set(fault, FAULT_ATTACH, "run", "must be " PHRASE_NAME);
	if (!wire_text(w, WIRE_STREAM, name, sizeof(name)) || !wire_name_ok(name))
		return fault_set(fault, FAULT_ATTACH, "stream", "must be " PHRASE_NAME);
	s->stream = catalog_stream(catalog, name);
	if (!s->stream)
		return fault_set(fault, FAULT_ATTACH, "stream", PHRASE_NO_STREAM, name,
			catalog->config->path, config_list_streams(catalog->config, name, list));
	if (s->world < 1 || s->world > LIMIT_WORLD)
		return fault_set(
			fault, FAULT_ATTACH, "world", "%" PRIu64 " is not 1 to 2^32", s->world);
	if (s->rank >= s->world)
		return fault_set(fault, FAULT_ATTACH, "rank",
			"%" PRIu64 " is not below world, %" PRIu64, s->rank, s->world);
	return true;
}

/* Decodes the client's cursor, or the snapshot. */
static bool read_cursor(struct attach_job *job)
{
	struct fault *fault = &job->fault;

	if (cursor_decode(&job->cursor, job->bytes, job->cursor_bytes, fault) &&
		cursor_belongs(&job->cursor, &job->session->stream->begin, fault))
		return true;
	if (job->start != START_TAG)
		return false;

	size_t n = strlen(fault->text);

	snprintf(fault->text + n, sizeof(fault->text) - n, " (snapshot %s)", job->tag);
	return false;
}

static bool make_cursor(struct attach_job *job)
{
	const struct stream *stream = job->session->stream;
	bool made;

	if (job->start == START_BEGIN || job->start == START_POSITION) {
		if (!cursor_copy(&job->cursor, &stream->begin))
			return fault_set_passing(
				&job->fault, FAULT_MEMORY, "cursor", "out of memory");
		made = cursor_seek(
			&job->cursor, job->start == START_BEGIN ? 0 : job->position, &job->fault);
	} else {
		made = read_cursor(job);
	}
	if (!made)
		job->fault.code = FAULT_CURSOR;
	return made;
}

/*
 * Checks the cgroup's limit first: beyond it the kernel kills instead of failing. `memory:` alone
 * is not enough, because other processes of the cgroup may have taken memory since the start.
 */
static bool make_memory(struct attach_job *job)
{
	struct session *s = job->session;
	struct cgroup *cgroup = s->control->options->cgroup;
	struct cgroup_room room;

	if (!cgroup_promise(cgroup, s->bytes, job->replaces, &room))
		return fault_set_passing(&job->fault, FAULT_MEMORY, "slots",
			"a ring of %" PRIu64 " slots needs %" PRIu64 " bytes, but only %" PRIu64
			" of the %" PRIu64
			" bytes of cgroup %s are left; raise its limit, or " PHRASE_SLOTS,
			s->slots, s->bytes, room.left, room.limit, room.path);

	bool made = ring_memory_new(&s->memory, &job->geometry, s->node, &job->fault);

	if (!made) {
		job->fault.code = FAULT_MEMORY;
		job->fault.passing = true;
	}
	cgroup_used(cgroup, s->bytes);
	return made;
}

static bool make_feed(struct attach_job *job)
{
	struct session *s = job->session;
	const struct stream *stream = s->stream;
	const struct dataset *dataset[LIMIT_DATASETS];
	struct feed_source source[LIMIT_DATASETS];

	if (!make_memory(job))
		return false;
	stream_map(stream, &job->cursor, dataset);
	for (uint32_t d = 0; d < job->cursor.datasets; d++)
		source[d] = (struct feed_source){
			.table = dataset[d] ? &dataset[d]->table : NULL,
			.owner = dataset[d],
			.queue = reading_queue(dataset[d], s->control->options->store_queues),
		};
	s->feed = feed_new(&job->cursor, &(struct feed_options){
						 .id = s->id,
						 .stream = stream->slot,
						 .user = job->connection->uid,
						 .run = order_name_hash(s->run, strlen(s->run)),
						 .rank = s->rank,
						 .world = s->world,
						 .ring = s->memory.ring,
						 .source = source,
					 });
	return s->feed || fault_set_passing(&job->fault, FAULT_MEMORY, "feed", "out of memory");
}

/* A number that is equal where the cursor's datasets have the same tokens, as far as that is known.
 */
static uint64_t contents_of(const struct stream *stream, const struct cursor *cursor)
{
	const struct dataset *dataset[LIMIT_DATASETS];
	uint64_t h = 0;

	stream_map(stream, cursor, dataset);
	for (uint32_t i = cursor_past(cursor); i < cursor->segments; i++)
		for (uint32_t d = 0; d < cursor->segment[i]->datasets; d++)
			if (cursor->segment[i]->units[d] > 0)
				h = order_derive(h, dataset[d]->contents);
	return h;
}

/* In the pool. */
static void attach_work(uv_work_t *work)
{
	struct attach_job *job = work->data;

	job->ok = make_cursor(job) && make_feed(job);
	if (!job->ok)
		return;
	job->cursor_bytes = cursor_encode(&job->cursor, job->bytes, sizeof(job->bytes));
	assert(job->cursor_bytes > 0);
	job->contents = contents_of(job->session->stream, &job->cursor);
	job->session->next = job->cursor.next;
}

static void send_feed(struct attach_job *job)
{
	struct session *s = job->session;
	struct wire w = {.op = WIRE_FEED};
	int fds[] = {s->memory.meta_fd, s->memory.data_fd};

	wire_set_bytes(&w, WIRE_CURSOR, job->bytes, job->cursor_bytes);
	wire_set(&w, WIRE_CONTENTS, job->contents);
	wire_set(&w, WIRE_END, cursor_end(&job->cursor));
	wire_set(&w, WIRE_META_BYTES, job->geometry.meta_bytes);
	wire_set(&w, WIRE_DATA_BYTES, job->geometry.data_bytes);
	wire_set(&w, WIRE_ID, s->id);
	wire_set_text(&w, WIRE_RUN, s->run);
	connection_send_fds(job->connection, job->job.serial, &w, fds, 2);
	ring_memory_close_fds(&s->memory);
}

/* Containers forbid it; then the ring is where the kernel puts it. */
static void log_node(const struct session *s)
{
	if (s->memory.node_error == EINVAL)
		log_client(s->connection->uid, LOG_NOTE,
			"pid %d: its ring cannot be put on NUMA node %" PRIu64 ": no such node",
			(int)s->connection->pid, s->node);
}

enum { DOUBTS_MOST = 8 }; /* a socket does not hold a warning for each of many datasets */

struct doubts {
	struct connection *connection;
	unsigned n;
};

static void warn_one(void *context, const struct stream *s, bool doubt, const char *text)
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

/* Before the reply, so that the trainer sees them now. */
static void warn(struct attach_job *job)
{
	struct session *s = job->session;
	char text[LIMIT_TEXT_BYTES];

	twins_join(s);
	if (s->again || s->helper || s->rank > 0 || s->peer > 0) /* once a job */
		return;
	if (!s->replaces)
		plan_tell(s->stream, &(struct doubts){s->connection, 0}, warn_one);
	if (s->mix_told || !plan_mix_differs(s->stream, &job->cursor, s->run, text, sizeof(text)))
		return;
	connection_warn(s->connection, text);
	s->mix_told = true;
}

static void begin(struct attach_job *job)
{
	struct connection *c = job->connection;
	struct session *s = job->session;

	s->fed = true;
	s->attached_ms = connection_now(c);
	s->stream->counts->attaches++;
	s->stream->counts->attaches_again += s->again;
	log_node(s);
	session_log_attach(s);
	following_begin(s);
	data_thread_attach(s->control->data_thread, s->id, s->feed, c->fd, s->stream->counts);
	/* A send may find that the client is gone. Then the session leaves at once, so it must have
	 * begun. */
	warn(job);
	if (!c->closing)
		request_join(s);
	twins_joined(s); /* before the first batch, too */
	state_attached(s, job->bytes, job->cursor_bytes);
	send_feed(job);
}

/* Back on the loop. */
static void attach_done(uv_work_t *work, int status)
{
	struct attach_job *job = work->data;
	struct connection *c = job->connection;

	(void)status;
	c->jobs--;
	if (c->closing)
		session_end(job->session);
	else if (!job->ok)
		connection_refuse(c, job->job.serial, &job->fault);
	else
		begin(job);
	attach_job_free(job);
}

static void make(struct attach_job *job)
{
	uv_queue_work(job->connection->all->loop, &job->work, attach_work, attach_done);
}

/* ---- the stream's shards, as they are now ---- */

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

static void reload_for(struct control *control, const struct session *s, const char *why)
{
	struct reload *r = &control->reload;

	if (r->running || uv_now(control->loop) - r->since_ms < RELOADS_MS)
		return;
	log_line(LOG_NOTE, "stream %s: %s: reading the config again before the next attach",
		s->stream->config->name, why);
	reload_begin(r);
}

/* Refuses the attach, because of @what. */
static void refuse_changed(
	struct control *control, struct attach_job *job, const struct fault *what)
{
	const struct session *s = job->session, *other = reader_of(s);
	const char *refused = control->reload.refused;

	if (other) {
		fault_set(&job->fault, FAULT_ATTACH, "shards",
			"%.400s; pid %d still reads the former shards of stream %s (run %s): end "
			"it, or restore them",
			what->text, (int)other->connection->pid, s->stream->config->name,
			other->run);
	} else if (control->comparing.stopped[s->stream->slot]) {
		fault_set(&job->fault, FAULT_ATTACH, "shards",
			"%.400s, which stopped stream %s; restore it (cp -p), or have tokend read "
			"the new shards: kill -HUP %d",
			what->text, s->stream->config->name, (int)getpid());
	} else {
		reload_for(control, s, what->text);
		fault_set_passing(&job->fault, FAULT_ATTACH, "shards",
			"%.300s; the config is read again before the next attach%s%.500s",
			what->text, refused[0] ? ", which failed: " : "", refused);
	}
}

/* The wait of @job is over: it may attach, or job->fault says why not. */
static void go(struct control *control, struct attach_job *job, bool may)
{
	STAILQ_REMOVE(&control->comparing.waiting, job, attach_job, waits);
	if (may)
		make(job);
	else
		attach_done(&job->work, 0);
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
	struct attach_job *job, *following;
	bool any = false;

	(void)status;
	for (job = STAILQ_FIRST(&control->comparing.waiting); job; job = following) {
		following = STAILQ_NEXT(job, waits);
		if (job->session->stream != c->stream)
			continue;
		any = true;
		if (!c->same)
			refuse_changed(control, job, &c->fault);
		go(control, job, c->same);
	}
	if (!c->same && !any)
		log_line(LOG_WARNING, "stream %s: %s: found after %d s; the next attach is refused",
			c->stream->config->name, c->fault.text, COMPARE_MS / 1000);
	c->stream = NULL;
}

static void compare_begin(struct control *control, struct attach_job *job)
{
	struct comparison *c = &control->comparing.of[job->session->stream->slot];
	uint64_t now = uv_now(control->loop);

	if (c->stream && now - c->since_ms >= COMPARE_MS) {
		make(job);
		return;
	}
	if (!c->stream) {
		*c = (struct comparison){
			.control = control, .stream = job->session->stream, .since_ms = now};
		c->work.data = c;
		uv_queue_work(control->loop, &c->work, compare_work, compare_done);
	}
	job->compared_ms = c->since_ms;
	STAILQ_INSERT_TAIL(&control->comparing.waiting, job, waits);
}

void compare_clock(struct control *control)
{
	struct attach_job *job, *following;
	uint64_t now = uv_now(control->loop);

	for (job = STAILQ_FIRST(&control->comparing.waiting); job; job = following) {
		following = STAILQ_NEXT(job, waits);
		if (job->session->connection->closing || now - job->compared_ms >= COMPARE_MS)
			go(control, job, true);
	}
}

/* A seek goes on with the shards that its process reads: the reader compares what it opens. */
static void compare(struct attach_job *job)
{
	struct session *s = job->session;

	job->connection->jobs++;
	if (job->replaces || s->again) {
		make(job);
		return;
	}
	compare_begin(s->control, job);
}

/* ---- at a snapshot ---- */

/* In the pool. */
static void load_work(struct state_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	struct fault *fault = &job->fault;

	job->cursor_bytes = state_load(&job->run, job->tag, job->bytes, fault);
	job->ok = job->cursor_bytes > 0;
	if (job->ok)
		return;
	snprintf(fault->field, sizeof(fault->field), "tag");
	fault->code = FAULT_CURSOR;
}

/* Back on the loop. */
static void load_done(struct state_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	struct connection *c = work->connection;

	if (c && job->ok) {
		compare(job);
		return;
	}
	if (c) {
		session_free(job->session);
		connection_refuse(c, job->job.serial, &job->fault);
	} /* otherwise the connection is closed, and its session was freed with it */
	attach_job_free(job);
}

/* ---- on the loop, without waiting ---- */

/* NULL: out of sessions, or out of memory. */
static struct attach_job *attach_job_new(struct connection *c, uint64_t serial)
{
	struct attach_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->connection = c;
	job->work.data = job;
	job->job.serial = serial;
	job->session = session_new(c);
	if (job->session)
		return job;
	free(job);
	return NULL;
}

static bool may_attach(struct attach_job *job, const struct wire *w)
{
	struct connection *c = job->connection;
	struct session *s = job->session;
	struct fault *fault = &job->fault;

	return read_coordinates(job, w, s->control->catalog) &&
	       runs_name(s->control->config, c->uid, s->run, fault) && read_start(job, w) &&
	       twins_allow(s, fault) &&
	       session_reserve(s, w, &job->geometry, &job->replaces, fault) &&
	       user_may_write(c->user, connection_now(c), FAULT_ATTACH, fault);
}

void session_attach(struct connection *c, const struct wire *w)
{
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct attach_job *job;
	struct fault fault;

	if (c->session) {
		fault_set(&fault, FAULT_ATTACH, "connection",
			"already attached; open another connection for another session");
		connection_refuse(c, serial, &fault);
		return;
	}
	job = attach_job_new(c, serial);
	if (!job) {
		fault_set_passing(&fault, FAULT_MEMORY, "sessions",
			"no room for another session; at most %d are served", LIMIT_SESSIONS);
		connection_refuse(c, serial, &fault);
		return;
	}

	struct session *s = job->session;

	if (!may_attach(job, w)) {
		session_free(s);
		connection_refuse(c, serial, &job->fault);
		attach_job_free(job);
		return;
	}
	if (job->start != START_TAG) {
		compare(job);
		return;
	}
	job->job.work = load_work;
	job->job.done = load_done;
	state_give(&s->control->state.jobs, c, &job->job);
}
