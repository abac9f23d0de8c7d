/*
 * A session is what its client said at attach: (stream, cursor, rank, world, micro_batch).
 * Attaching runs in three steps: what needs no waiting is checked on the loop, cursor and ring are
 * made in libuv's pool, and back on the loop the data thread gets the feed and the client its two
 * descriptors. Only an attach at a snapshot waits for state_dir, before the second step.
 *
 * Teardown goes backwards: the data thread is asked to let go, and when it has, everything is freed
 * and the connection may close. A job in the pool holds its connection open until it is back.
 */
#include "daemon/control/log.h"
#include "daemon/control/mix_log.h"
#include "daemon/control/server.h"
#include "daemon/control/snapshot_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	RING_BYTES = 4 << 20, /* what a ring holds unless the client says: so much, */
	SLOTS_LEAST = 4,      /* but this many batches at least */
	SLOTS_MOST = 64,      /* and no more than this */
	OUTLIVED_MS = 1000,
	LEAVING_MOST_S = 2, /* then a ring is given back, whatever is still read into it */
};

/* ---- attach ---- */

enum start { START_BEGIN, START_POSITION, START_TAG, START_CURSOR };

struct attach_job {
	struct errand errand; /* to load the snapshot */
	uv_work_t work;
	struct connection *connection;
	struct session *session; /* owned until it is attached */
	struct run_place place;
	struct ring_geometry geometry;
	enum start start;
	uint64_t position;
	char tag[SNAPSHOT_TAG_BYTES], former[SNAPSHOT_TAG_BYTES];
	size_t cursor_bytes;
	struct cursor cursor;
	uint64_t fingerprint;
	struct mix_log_noted noted;
	bool ok;
	bool replaces;	  /* another ring of its client, which goes then */
	uint64_t used_ns; /* CPU time */
	struct refusal refusal;
	char bytes[LIMIT_CURSOR_BYTES]; /* of the cursor, in and out */
};

static void attach_job_free(struct attach_job *job)
{
	cursor_free(&job->cursor);
	free(job);
}

/* ---- the two rings of a seek ---- */

/*
 * A client that seeks has its next ring before it closes this one, so that a refusal leaves it
 * where it was. For that moment `memory:` counts the two as the larger of them: a config that fits
 * exactly serves an operator's mix.
 *
 * Only a session of the same process counts. It is believed for one successor that stays and one
 * that is on its way out, and not while it replaces another one that stays: who opens ring after
 * ring and closes none gets at most twice what `memory:` allows.
 */
static bool may_be_replaced(const struct server *server, const struct session *former)
{
	const struct session *before = former->replaces;
	unsigned successors = 0;

	if (before && (!before->connection->closing || before->replaces))
		return false;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = server->session[id];

		if (!s || s->replaces != former)
			continue;
		if (!s->connection->closing || ++successors > 1)
			return false;
	}
	return true;
}

static struct session *find_replaced(const struct session *s, const struct wire *w)
{
	const struct connection *c = s->connection;
	uint64_t id = wire_has(w, WIRE_REPLACES) ? wire_number(w, WIRE_REPLACES) : LIMIT_SESSIONS;
	struct session *former = id < LIMIT_SESSIONS ? c->server->session[id] : NULL;

	if (!former || former == s || former->connection->pid != c->pid ||
		former->connection->uid != c->uid || former->peer != s->peer ||
		strcmp(former->run, s->run) != 0 || !may_be_replaced(c->server, former))
		return NULL;
	return former;
}

static void begin_pair(struct session *s, struct session *former)
{
	if (!former)
		return;
	s->replaces = former;
	s->lent = s->bytes < former->bytes ? s->bytes : former->bytes;
	s->connection->server->lent_bytes += s->lent;
}

static void end_pair(struct session *s)
{
	if (s->replaces)
		s->replaces->outlived_ms = uv_now(&s->connection->server->loop);
	s->connection->server->lent_bytes -= s->lent;
	s->lent = 0;
	s->replaces = NULL;
}

static void end_pairs(struct session *s)
{
	struct server *server = s->connection->server;

	end_pair(s);
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (server->session[id] && server->session[id]->replaces == s)
			end_pair(server->session[id]);
}

/* Frees what a session owns, and itself; not in the data thread any more. */
static void session_free(struct session *s)
{
	struct server *server = s->connection->server;

	assert(!s->fed);
	feed_free(s->feed);
	ring_memory_free(&s->memory);
	end_pairs(s);
	server->memory_bytes -= s->bytes;
	quota_return(s->connection->quota, s->bytes);
	server->session[s->id] = NULL;
	server->sessions--;
	s->connection->session = NULL;
	free(s);
}

/* In the pool: to give back the pages of a large ring takes a while. */
static void unmap_work(uv_work_t *work)
{
	struct session *s = work->data;
	uint64_t begin = pace_clock();

	ring_memory_free(&s->memory);
	s->used_ns = pace_clock() - begin;
}

static void unmap_done(uv_work_t *work, int status)
{
	struct session *s = work->data;
	struct connection *c = s->connection;

	(void)status;
	c->jobs--;
	pace_charge(c, s->used_ns);
	session_free(s);
	connection_settle(c);
}

/* Its connection is closing, and the data thread has let go of it, or never had it. */
static void session_end(struct session *s)
{
	struct server *server = s->connection->server;

	assert(!s->fed && s->connection->closing);
	if (s->feed)
		server->lost_wakes += feed_counters(s->feed).lost_wakes;
	feed_free(s->feed);
	s->feed = NULL;
	s->connection->jobs++;
	s->unmap.data = s;
	uv_queue_work(&server->loop, &s->unmap, unmap_work, unmap_done);
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
		return refuse(&job->refusal, "attach", "start",
			"name one of begin, position, tag and cursor");
	if (job->start == START_POSITION)
		job->position = wire_number(w, WIRE_POSITION);
	if (job->start == START_TAG && !wire_text(w, WIRE_TAG, job->tag, sizeof(job->tag)))
		return refuse(&job->refusal, "attach", "tag", "too long");
	if (job->start == START_CURSOR) {
		struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);

		if (b.n > sizeof(job->bytes))
			return refuse(&job->refusal, "attach", "cursor", "%u bytes, at most %d",
				b.n, LIMIT_CURSOR_BYTES);
		memcpy(job->bytes, b.at, b.n);
		job->cursor_bytes = b.n;
	}
	return true;
}

static bool read_coordinates(
	struct attach_job *job, const struct wire *w, const struct catalog *catalog)
{
	struct session *s = job->session;
	struct refusal *r = &job->refusal;
	char name[LIMIT_NAME_BYTES + 1];

	s->rank = wire_number(w, WIRE_RANK);
	s->world = wire_number(w, WIRE_WORLD);
	s->micro_batch = wire_number(w, WIRE_MICRO);
	s->peer = wire_number(w, WIRE_PEER);
	s->slots = wire_number(w, WIRE_SLOTS);
	s->helper = wire_number(w, WIRE_HELPER) != 0;
	s->strict = wire_has(w, WIRE_STRICT) && wire_number(w, WIRE_STRICT) != 0;
	s->node = wire_has(w, WIRE_NODE) ? wire_number(w, WIRE_NODE) : RING_MEMORY_ANYWHERE;
	if (!wire_text(w, WIRE_RUN, s->run, sizeof(s->run)) || !wire_name_ok(s->run))
		return refuse(r, "attach", "run",
			"not a name: 1 to %d bytes without '/' and leading dot", LIMIT_NAME_BYTES);
	if (!wire_text(w, WIRE_STREAM, name, sizeof(name)) || !wire_name_ok(name))
		return refuse(r, "attach", "stream", "not a name");
	s->stream = catalog_stream(catalog, name);
	if (!s->stream)
		return refuse(
			r, "attach", "stream", "%s is not in %s", name, catalog->config->path);
	if (s->world < 1 || s->world > LIMIT_WORLD)
		return refuse(r, "attach", "world", "%" PRIu64 ", must be 1 to 2^32", s->world);
	if (s->rank >= s->world)
		return refuse(r, "attach", "rank", "%" PRIu64 ", must be below the world, %" PRIu64,
			s->rank, s->world);
	return true;
}

static unsigned ring_annotations_of(const struct config_stream *c)
{
	return (c->documents ? RING_DOCUMENTS : 0) | (c->loss_mask ? RING_LOSS_MASK : 0);
}

static uint64_t default_slots(const struct stream *stream, uint64_t micro_batch)
{
	uint64_t token = stream->token_bytes + (stream->config->documents ? sizeof(uint32_t) : 0) +
			 stream->config->loss_mask;
	uint64_t slot = micro_batch * (stream->config->seq_len + stream->config->extra) * token;
	uint64_t slots = slot ? RING_BYTES / slot : SLOTS_MOST;

	return slots < SLOTS_LEAST ? SLOTS_LEAST : slots > SLOTS_MOST ? SLOTS_MOST : slots;
}

/* Sizes the ring and takes its memory out of `memory:`. */
static bool reserve(struct attach_job *job, const struct wire *w, struct server *server)
{
	struct session *s = job->session;
	const struct config_stream *c = s->stream->config;
	const struct config *config = server->options->catalog->config;
	uint64_t limit = config->memory_bytes;
	struct fault fault;

	if (s->micro_batch < 1 || s->micro_batch > LIMIT_MICRO_BATCH)
		return refuse(&job->refusal, "attach", "micro_batch",
			"%" PRIu64 ", must be 1 to %d", s->micro_batch, LIMIT_MICRO_BATCH);
	if (s->slots == 0)
		s->slots = default_slots(s->stream, s->micro_batch);
	if (!ring_geometry(&job->geometry, s->slots, s->micro_batch, c->seq_len + c->extra,
		    s->stream->token_bytes, ring_annotations_of(c), &fault))
		return refuse(&job->refusal, "attach", fault.field, "%s", fault.text);

	uint64_t need = job->geometry.meta_bytes + job->geometry.data_bytes;
	uint64_t used = server->memory_bytes - server->lent_bytes;
	uint64_t left = limit > used ? limit - used : 0;
	struct session *former = find_replaced(s, w);
	uint64_t lent = !former ? 0 : need < former->bytes ? need : former->bytes;
	/* A ring that fits once all others have left will fit; a larger one never does. */
	bool passing = need + server->options->staging_bytes <= limit;

	if (need - lent > left)
		return (passing ? refuse_passing : refuse)(&job->refusal, "memory", "slots",
			"a ring of %" PRIu64 " slots needs %" PRIu64 " bytes, %" PRIu64
			" of %" PRIu64 " are left: raise %s %s, or take fewer slots",
			s->slots, need, left, limit,
			config->memory_capped ? "the cgroup's limit, which is below memory: in"
					      : "memory: in",
			config->path);
	/* Of a ring in place of another one, what it takes more than that. */
	if (need > lent && !quota_memory(server->quotas, s->connection->quota, need - lent,
				   used - server->options->staging_bytes,
				   limit - server->options->staging_bytes, &job->refusal))
		return false;
	s->bytes = need;
	server->memory_bytes += need;
	quota_take(s->connection->quota, need);
	begin_pair(s, former);
	job->replaces = former != NULL;
	return true;
}

/* Decodes the job's bytes. */
static bool read_cursor(struct attach_job *job)
{
	struct fault why;

	if (cursor_decode(&job->cursor, job->bytes, job->cursor_bytes, &why) &&
		cursor_belongs(&job->cursor, &job->session->stream->begin, &why))
		return true;
	if (job->start != START_TAG)
		return refuse(&job->refusal, "cursor", why.field, "%s", why.text);
	return refuse(&job->refusal, "cursor", why.field, "%s (snapshot %s)%s%s", why.text,
		job->tag, job->former[0] ? "; the one before it is kept as " : "", job->former);
}

static bool make_cursor(struct attach_job *job)
{
	const struct stream *stream = job->session->stream;
	struct fault why;

	if (job->start == START_BEGIN || job->start == START_POSITION) {
		if (!cursor_copy(&job->cursor, &stream->begin))
			return refuse_passing(&job->refusal, "memory", "cursor", "out of memory");
		return cursor_seek(
			       &job->cursor, job->start == START_BEGIN ? 0 : job->position, &why) ||
		       refuse(&job->refusal, "cursor", why.field, "%s", why.text);
	}
	return read_cursor(job);
}

/* Others in our cgroup may have taken since the start what memory: counts on. Its limit kills
 * instead of failing, so we look first. */
static bool make_memory(struct attach_job *job)
{
	struct session *s = job->session;
	struct cgroup *cgroup = job->connection->server->options->cgroup;
	struct cgroup_room room;

	if (!cgroup_promise(cgroup, s->bytes, job->replaces, &room))
		return refuse_passing(&job->refusal, "memory", "slots",
			"a ring of %" PRIu64 " slots needs %" PRIu64 " bytes, %" PRIu64
			" are left of the %" PRIu64
			" that cgroup %s may use: raise its limit, or take fewer slots",
			s->slots, s->bytes, room.left, room.limit, room.path);

	bool made = ring_memory_new(&s->memory, &job->geometry, s->node) ||
		    refuse_passing(&job->refusal, "memory", "ring",
			    "%" PRIu64 " bytes of shared memory: %s", s->bytes, strerror(errno));

	cgroup_used(cgroup, s->bytes);
	return made;
}

static bool make_feed(struct attach_job *job)
{
	struct session *s = job->session;
	const struct stream *stream = s->stream;
	const struct dataset *dataset[LIMIT_DATASETS];
	struct feed_source source[LIMIT_DATASETS];
	const struct catalog *catalog = job->connection->server->options->catalog;

	if (!make_memory(job))
		return false;
	stream_map(stream, &job->cursor, dataset);
	for (uint32_t d = 0; d < job->cursor.datasets; d++)
		source[d] =
			(struct feed_source){dataset[d] ? &dataset[d]->table : NULL, dataset[d]};
	s->feed = feed_new(&job->cursor, &(struct feed_options){
						 .id = s->id,
						 .stream = (uint32_t)(stream - catalog->stream),
						 .user = job->connection->uid,
						 .run = order_name_hash(s->run, strlen(s->run)),
						 .rank = s->rank,
						 .world = s->world,
						 .ring = s->memory.ring,
						 .source = source,
					 });
	return s->feed || refuse_passing(&job->refusal, "memory", "feed", "out of memory");
}

/* In the pool. */
static void attach_work(uv_work_t *work)
{
	struct attach_job *job = work->data;
	uint64_t begin = pace_clock();

	job->ok = make_cursor(job) && make_feed(job);
	job->used_ns = pace_clock() - begin;
	if (!job->ok)
		return;
	job->cursor_bytes = cursor_encode(&job->cursor, job->bytes, sizeof(job->bytes));
	assert(job->cursor_bytes > 0);
	job->noted = runs_note(job->connection->server, &job->place, mix_log_checksum(&job->cursor),
		job->bytes, job->cursor_bytes);
	job->fingerprint =
		cursor_fingerprint(&job->cursor, job->session->world, job->session->micro_batch);
	job->session->next = job->cursor.next;
}

static void send_feed(struct attach_job *job)
{
	struct session *s = job->session;
	struct wire w = {.op = WIRE_FEED};
	int fds[] = {s->memory.meta_fd, s->memory.data_fd};

	wire_set_bytes(&w, WIRE_CURSOR, job->bytes, job->cursor_bytes);
	wire_set(&w, WIRE_FINGERPRINT, job->fingerprint);
	wire_set(&w, WIRE_END, cursor_end(&job->cursor));
	wire_set(&w, WIRE_META_BYTES, job->geometry.meta_bytes);
	wire_set(&w, WIRE_DATA_BYTES, job->geometry.data_bytes);
	wire_set(&w, WIRE_ID, s->id);
	wire_set_text(&w, WIRE_RUN, s->run);
	connection_send(job->connection, &w, fds, 2);
	ring_memory_close_fds(&s->memory);
}

/* A ring that could not be put where its client runs. */
static void tell_node(struct session *s)
{
	struct server *server = s->connection->server;
	int error = s->memory.node_error;

	if (error == 0 || (error != EINVAL && server->nodes_forbidden))
		return;
	server->nodes_forbidden |= error != EINVAL;
	log_client(s->connection->uid, LOG_NOTE,
		"pid %d: its ring is not put on NUMA node %" PRIu64 ": %s%s",
		(int)s->connection->pid, s->node,
		error == EINVAL ? "we have no such node" : strerror(error),
		error == EINVAL ? "" : "; not said again");
}

/* Back on the loop. */
static void attach_done(uv_work_t *work, int status)
{
	struct attach_job *job = work->data;
	struct connection *c = job->connection;
	struct session *s = job->session;

	(void)status;
	c->jobs--;
	pace_charge(c, job->used_ns);
	if (c->closing) {
		session_end(s);
	} else if (!job->ok || !runs_claim(s, &job->noted, &job->refusal)) {
		connection_refuse_with(c, &job->refusal);
	} else {
		s->fed = true;
		pace_run(c, s->run);
		tell_node(s);
		twins_join(s);
		request_join(s);
		feeder_attach(c->server->feeder, s->id, s->feed, c->fd);
		send_feed(job);
	}
	attach_job_free(job);
}

/* In the keeper's thread. */
static void load_work(struct keeper_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	char text[600];

	job->cursor_bytes = snapshot_file_load(job->place.state_dir, job->place.stream,
		job->place.run, job->tag, job->bytes, job->former, text, sizeof(text));
	job->ok = job->cursor_bytes > 0 ||
		  refuse(&job->refusal, "cursor", "tag", "%s%s%s", text,
			  job->former[0] ? "; the one before it is kept as " : "", job->former);
}

static void make(struct attach_job *job)
{
	struct connection *c = job->connection;

	c->jobs++;
	uv_queue_work(&c->server->loop, &job->work, attach_work, attach_done);
}

/* Back on the loop. */
static void load_done(struct keeper_job *work)
{
	struct attach_job *job = (struct attach_job *)work;
	struct connection *c = errand_back(&job->errand);

	if (c && job->ok) {
		make(job);
		return;
	}
	if (c) {
		session_free(job->session);
		connection_refuse_with(c, &job->refusal);
	} /* else connection_close() has freed it */
	attach_job_free(job);
}

static struct session *session_new(struct connection *c)
{
	struct server *server = c->server;
	uint32_t id = 0;

	while (id < LIMIT_SESSIONS && server->session[id])
		id++;
	if (id == LIMIT_SESSIONS)
		return NULL;

	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->connection = c;
	s->id = id;
	s->memory.meta_fd = s->memory.data_fd = -1;
	server->session[id] = s;
	server->sessions++;
	c->session = s;
	return s;
}

void session_attach(struct connection *c, const struct wire *w)
{
	struct server *server = c->server;

	if (c->session) {
		connection_refuse(c, "attach", "connection",
			"it is attached already: a session is a connection of its own");
		return;
	}

	struct attach_job *job = calloc(1, sizeof(*job));
	struct session *s = job ? session_new(c) : NULL;

	if (!s) {
		struct refusal full;

		free(job);
		refuse_passing(&full, "memory", "sessions", "no room for another one");
		connection_refuse_with(c, &full);
		return;
	}
	job->connection = c;
	job->session = s;
	job->work.data = job;
	if (!read_coordinates(job, w, server->options->catalog) || !runs_enter(s, &job->refusal) ||
		!read_start(job, w) || !twins_refuse(s, &job->refusal) ||
		!reserve(job, w, server) || !runs_begin(s, &job->refusal)) {
		session_free(s);
		connection_refuse_with(c, &job->refusal);
		attach_job_free(job);
		return;
	}
	runs_place(server, c->uid, s->stream->config->name, s->run, &job->place);
	if (job->start != START_TAG) {
		make(job);
		return;
	}
	job->errand.job = (struct keeper_job){.work = load_work, .done = load_done};
	errand_send(c, &job->errand);
}

/* ---- the end of a session ---- */

void session_leave(struct session *s)
{
	if (s->fed)
		feeder_detach(s->connection->server->feeder, s->id);
	else if (s->connection->jobs == 0)
		session_end(s);
	/* else attach_done() ends it */
}

/* The first position of the session's rank that was not handed out. */
static uint64_t sound_until(const struct session *s)
{
	return order_rank_position(
		s->next, feed_counters(s->feed).published, s->rank, s->world, s->micro_batch);
}

static void say_failure(struct session *s, const struct feeder_failure *f)
{
	const char *shard = dataset_shard_name(f->dataset, f->shard);
	char field[96], text[LIMIT_TEXT_BYTES];

	snprintf(field, sizeof(field), "dataset %s", f->dataset->config->name);
	const char *stream = s->stream->config->name;

	switch (f->fault) {
	case READER_SHORT:
		snprintf(text, sizeof(text),
			"shard %s at token %" PRIu64 ": the file ends before that, it was "
			"truncated; stream %s stops here, nothing was "
			"skipped: restore it, then attach at the cursor",
			shard, f->token, stream);
		break;
	case READER_REPLACED:
		snprintf(text, sizeof(text),
			"shard %s at token %" PRIu64 ": not the file that was there when tokend "
			"started: %s; stream %s stops here, "
			"nothing was skipped: restore it, or restart tokend",
			shard, f->token, f->why, stream);
		break;
	case READER_CHANGED:
		snprintf(text, sizeof(text),
			"shard %s at token %" PRIu64
			": not the file that it was, it was written to while it "
			"was open: %s; stream %s stops "
			"here, nothing was skipped: positions of rank %" PRIu64 " before %" PRIu64
			" are sound, none after was handed out; restore the shard, then attach at "
			"the cursor",
			shard, f->token, f->why, stream, s->rank, sound_until(s));
		break;
	default:
		snprintf(text, sizeof(text),
			"shard %s at token %" PRIu64
			": %s; stream %s stops here, nothing was skipped",
			shard, f->token, f->why[0] ? f->why : strerror(f->error), stream);
	}
	s->connection->server->failures++;
	connection_refuse(s->connection, "data", field, text);
}

void session_news(struct server *server, uint32_t id, unsigned news)
{
	struct session *s = server->session[id];
	struct connection *c;

	assert(s && s->fed);
	c = s->connection;
	if ((news & FEEDER_FAILED) && !c->closing) {
		struct feeder_failure failure = feeder_failure(server->feeder, id);

		say_failure(s, &failure);
	}
	if ((news & FEEDER_HOSTILE) && !c->closing)
		connection_refuse(c, "protocol", "released",
			"the ring's control words are out of range: this client was thrown out");
	if (news & FEEDER_GONE) {
		s->fed = false;
		if (!s->vacating)
			session_end(s);
	}
}

static void tell_unpinned(struct session *s, bool unpinned)
{
	if (unpinned && !s->unpinned)
		log_client(s->connection->uid, LOG_WARNING,
			"pid %d: its ring of stream %s is not pinned: its GPU's driver refused to "
			"register "
			"it; its copies are slower",
			(int)s->connection->pid, s->stream->config->name);
	s->unpinned = unpinned;
}

/* In the pool. */
static void vacate_work(uv_work_t *work)
{
	struct session *s = work->data;
	uint64_t begin = pace_clock();

	ring_memory_vacate(&s->memory);
	s->used_ns = pace_clock() - begin;
}

static void vacate_done(uv_work_t *work, int status)
{
	struct session *s = work->data;
	struct connection *c = s->connection;

	(void)status;
	c->jobs--;
	pace_charge(c, s->used_ns);
	end_pairs(s);
	c->server->memory_bytes -= s->bytes;
	quota_return(c->quota, s->bytes);
	s->bytes = 0;
	s->vacating = false;
	if (!s->fed)
		session_end(s);
}

/* Its trainer is gone, and storage does not answer: the ring's memory does not wait for that. */
static void give_back(struct session *s)
{
	if (++s->leaving_s != LEAVING_MOST_S)
		return;
	s->vacating = true;
	s->connection->jobs++;
	s->unmap.data = s;
	uv_queue_work(&s->connection->server->loop, &s->unmap, vacate_work, vacate_done);
}

/*
 * A client that takes an edit back goes on with the ring it had before, and does not attach again.
 * The log of mixes then ends with a mix that never acted, so the session's own is added once more.
 * Not at once: the sessions of a process that is killed end in any order, and its edit may stand.
 */
static void note_outlived(struct session *s, uint64_t now_ms)
{
	if (s->outlived_ms == 0 || now_ms - s->outlived_ms < OUTLIVED_MS)
		return;
	s->outlived_ms = 0;
	runs_note_again(s);
}

void session_clock(struct session *s, uint64_t now_ms)
{
	if (!s->fed)
		return;
	if (s->connection->closing) {
		give_back(s);
		return;
	}

	struct feed_counters counters = feed_counters(s->feed);

	note_outlived(s, now_ms);
	tell_unpinned(s, counters.pinned == RING_UNPINNED);
	if (!counters.full)
		s->full_since_ms = 0;
	else if (s->full_since_ms == 0)
		s->full_since_ms = now_ms;
}
