#include "daemon/control/control.h"

#include "daemon/io/io.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_MS = 1000, REFILL_MS = 50, REAP = 128, PAUSE_MS = 5, MS = 1000000 };

struct data_thread {
	pthread_t thread;
	struct engine *engine;
	struct reader *reader;
	struct control *control; /* its catalog, options and `news` */
	_Atomic uint64_t turns;	 /* of the data thread's loop */

	pthread_mutex_t lock; /* of these */
	bool stop;
	bool pause;				 /* no read begins */
	uint32_t orders;			 /* sessions in `ordered` */
	struct session *ordered[LIMIT_SESSIONS]; /* those with an order */
	struct reader_hang hang[LIMIT_STREAMS];
	bool busy;		   /* a pause has begun, and a local read may be in flight: */
	struct reader_hang flying; /* this one, once the thread has followed */

	/* ---- the data thread's ---- */
	bool paused;	    /* as `pause` */
	bool news;	    /* sessions have some that were not announced */
	int64_t now_ns;	    /* since the reader last returned */
	struct fault fault; /* the last one */
	struct engine_actions actions;
	struct session *session[LIMIT_SESSIONS]; /* those whose feeds the engine has */
};

/* ---- the data thread ---- */

/*
 * The wait of a client that was woken. Its beginning is the client's word, but a wait begins after
 * the previous one, so no client can report more than it was attached.
 */
static void count_wait(struct session *s)
{
	uint64_t now = (uint64_t)io_now_ns(), since = feed_waits_since(s->feed);

	if (since == 0) /* unknown */
		return;
	since = since < s->idle_ns ? s->idle_ns : since;
	since = since > now ? now : since;
	s->idle_ns = now;
	count_add(&s->waits, 1);
	count_add(&s->waited_ns, now - since);
	histogram_add(&s->stream->counts->waits, now - since);
}

static void count_read(struct stream_counts *counts, const struct reader_done *done, int64_t now_ns)
{
	if (done->fault && done->fault->error == ECANCELED)
		return;
	if (done->fault) {
		count_add(&counts->read_faults[done->fault->code], 1);
		return;
	}
	count_add(&counts->read_bytes, done->tokens * done->dataset->token_bytes);
	count_add(done->dataset->samples, 1);
	histogram_add(&counts->reads, (uint64_t)(now_ns - done->since_ns));
}

static void say(struct data_thread *t, struct session *s, unsigned news)
{
	atomic_fetch_or(&s->news, news);
	t->news = true;
}

static void perform(struct data_thread *t, const struct engine_action *a)
{
	struct session *s = t->session[a->id];

	switch (a->type) {
	case ENGINE_READ:
		reader_queue(t->reader, &(struct reader_read){
						.tag = a->tag,
						.session = a->id,
						.stream = a->stream,
						.dataset = a->owner,
						.shard = a->shard,
						.token = a->token,
						.tokens = a->tokens,
						.to = a->to,
						.annotations = a->annotations,
						.since_ns = t->now_ns,
					});
		break;
	case ENGINE_CANCEL:
		reader_cancel(t->reader, a->id);
		break;
	case ENGINE_WAKE:
		count_wait(s); /* before the client can wait again */
		/* A full socket has unread wake-ups. A dead one is the loop's business. */
		(void)!send(s->connection->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case ENGINE_FAILED:
		s->failure = (struct session_failure){
			.dataset = a->owner,
			.shard = a->shard,
			.token = a->token,
			.fault = t->fault,
		};
		assert(a->fault == t->fault.code);
		say(t, s, DATA_THREAD_FAILED);
		break;
	case ENGINE_HOSTILE:
		say(t, s, DATA_THREAD_HOSTILE);
		break;
	case ENGINE_GONE:
		t->session[a->id] = NULL;
		say(t, s, DATA_THREAD_GONE); /* from now on it may be freed */
		break;
	}
}

static void step(struct data_thread *t, const struct engine_event *event)
{
	engine_step(t->engine, event, &t->actions);
	for (unsigned i = 0; i < t->actions.count; i++)
		perform(t, &t->actions.action[i]);
}

/* NULL: there is none. */
static struct session *take_order(struct data_thread *t, unsigned *order)
{
	struct session *s = NULL;

	pthread_mutex_lock(&t->lock);
	if (t->orders > 0) {
		s = t->ordered[--t->orders];
		*order = s->order;
		s->order = 0;
	}
	pthread_mutex_unlock(&t->lock);
	return s;
}

/* DATA_THREAD_DETACH is the last order of a session, which is freed after that. */
static void obey(struct data_thread *t)
{
	struct session *s;
	unsigned order;

	while ((s = take_order(t, &order))) {
		if (order & DATA_THREAD_ATTACH) {
			t->session[s->id] = s;
			s->idle_ns = (uint64_t)io_now_ns();
			reader_allow(t->reader, s->id);
			step(t, &(struct engine_event){.type = ENGINE_ATTACH, .feed = s->feed});
		}
		if (order & DATA_THREAD_KICK)
			step(t, &(struct engine_event){.type = ENGINE_KICK, .id = s->id});
		if (order & DATA_THREAD_DETACH)
			step(t, &(struct engine_event){.type = ENGINE_DETACH, .id = s->id});
	}
}

static void take_done(struct data_thread *t, const struct reader_done *done)
{
	const struct fault *fault = done->fault;

	count_read(t->session[done->tag >> 32]->stream->counts, done, t->now_ns);
	if (fault)
		t->fault = *fault;
	step(t, &(struct engine_event){
			.type = ENGINE_DONE,
			.tag = done->tag,
			.fault = fault ? fault->code : FAULT_NONE,
		});
	/* All feeds that this fault stops must fail now: only the last fault is kept. */
	while (fault && t->actions.more)
		step(t, &(struct engine_event){.type = ENGINE_PUMP});
}

void hang_shard(const struct reader_hang *hang, char *path, size_t path_bytes)
{
	shard_list_path(&hang->dataset->list, hang->shard, path, path_bytes);
	if (!path[0]) /* too long */
		snprintf(
			path, path_bytes, "%s", shard_list_name(&hang->dataset->list, hang->shard));
	fault_line(path);
}

/* Logs that the storage of a stream stops answering (@is), or answers again. */
static void log_hang(const struct stream *s, const struct reader_hang *hang, bool is)
{
	char path[LIMIT_TEXT_BYTES];

	hang_shard(hang, path, sizeof(path));
	log_line(is ? LOG_WARNING : LOG_NOTE,
		is ? "stream %s: storage of %s has not answered for %u s; the stream waits, other "
		     "streams continue; check the disk, the file server, and that descriptors are "
		     "left"
		   : "stream %s: storage of %s answers again, after %u s",
		s->config->name, path, hang->ticks);
}

/* Passes on which streams wait for storage that does not answer. */
static void pass_hangs(struct data_thread *t)
{
	const struct catalog *catalog = t->control->catalog;

	for (uint32_t stream = 0; stream < catalog->config->streams; stream++) {
		struct reader_hang hang = reader_hang(t->reader, stream), was = t->hang[stream];
		bool is = hang.ticks > 0;

		pthread_mutex_lock(&t->lock);
		t->hang[stream] = hang;
		pthread_mutex_unlock(&t->lock);
		if (is == (was.ticks > 0))
			continue;
		log_hang(&catalog->stream[stream], is ? &hang : &was, is);
	}
}

/* Shows the trainers that wait for a store what it says. */
static void show_reasons(struct data_thread *t)
{
	struct stores *stores = t->control->options->stores;
	char text[RING_REASON_BYTES];

	for (uint32_t id = 0; stores && id < LIMIT_SESSIONS; id++) {
		struct session *s = t->session[id];
		bool waits = s && store_waits(stores, id, text, sizeof(text)) > 0;

		if (s && (waits || s->shows_store))
			feed_say_reason(s->feed, waits ? text : "");
		if (s)
			s->shows_store = waits;
	}
}

/* Begins or ends a pause, and shows what is still read in it. False: the thread is to stop. */
static bool follow(struct data_thread *t)
{
	pthread_mutex_lock(&t->lock);
	bool stop = t->stop, was = t->paused;

	t->paused = t->pause;
	if (t->paused)
		t->busy = reader_busy(t->reader, &t->flying);
	pthread_mutex_unlock(&t->lock);
	if (t->paused != was)
		step(t, &(struct engine_event){.type = ENGINE_PAUSE, .on = t->paused});
	return !stop;
}

static void *run(void *argument)
{
	struct data_thread *t = argument;
	struct reader_done done[REAP];
	int64_t tick, refill;

	pthread_setname_np(pthread_self(), "tokend-data");
	t->now_ns = io_now_ns();
	tick = t->now_ns / MS + TICK_MS;
	refill = tick;
	while (follow(t)) {
		atomic_fetch_add_explicit(&t->turns, 1, memory_order_relaxed);
		obey(t);
		reader_commit(t->reader);
		if (t->news) {
			t->news = false;
			uv_async_send(&t->control->news);
		}
		int64_t now = t->now_ns / MS;
		int wait_ms = t->actions.more ? 0 : now < refill ? (int)(refill - now) : 1;

		if (t->paused && wait_ms > PAUSE_MS)
			wait_ms = PAUSE_MS;
		unsigned n = reader_reap(t->reader, done, REAP, wait_ms);

		t->now_ns = io_now_ns();
		now = t->now_ns / MS;
		for (unsigned i = 0; i < n; i++)
			take_done(t, &done[i]);
		if (now >= tick) {
			reader_tick(t->reader);
			pass_hangs(t);
			show_reasons(t);
			step(t, &(struct engine_event){.type = ENGINE_TICK});
			tick = now + TICK_MS;
		}
		if (now >= refill) {
			step(t, &(struct engine_event){.type = ENGINE_REFILL});
			refill = engine_busy(t->engine) && now + REFILL_MS < tick ? now + REFILL_MS
										  : tick;
		}
		/* One step at a time, so that a busy feed does not keep orders waiting. */
		if (t->actions.more)
			step(t, &(struct engine_event){.type = ENGINE_PUMP});
	}
	return NULL;
}

/* ---- the control thread's side ---- */

struct data_thread *data_thread_start(struct control *control, struct fault *fault)
{
	const struct server_options *options = control->options;
	struct data_thread *t = calloc(1, sizeof(*t));
	const struct reading *reading = options->reading;
	struct engine *engine = engine_new(reading->depth, reading->store_depth);
	int error = ENOMEM;

	if (t && engine) {
		t->control = control;
		t->reader = reading->reader;
		t->engine = engine;
		pthread_mutex_init(&t->lock, NULL);
		error = thread_start(&t->thread, run, t);
	}
	if (!error)
		return t;
	engine_free(engine);
	free(t);
	fault_errno(fault, error, "", "cannot start the data thread: %s", strerror(error));
	return NULL;
}

void data_thread_stop(struct data_thread *t)
{
	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_mutex_unlock(&t->lock);
	reader_kick(t->reader);
	pthread_join(t->thread, NULL);
	engine_free(t->engine);
	reader_close(t->reader);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void data_thread_tell(struct session *s, unsigned what)
{
	struct data_thread *t = s->control->data_thread;

	pthread_mutex_lock(&t->lock);
	bool first = t->orders == 0;

	if (s->order == 0)
		t->ordered[t->orders++] = s;
	s->order |= what;
	pthread_mutex_unlock(&t->lock);
	/* Otherwise the thread was kicked before: it takes all orders in one go. */
	if (first)
		reader_kick(t->reader);
}

void data_thread_pause(struct data_thread *t, bool pause)
{
	pthread_mutex_lock(&t->lock);
	t->pause = t->busy = pause;
	t->flying.dataset = NULL;
	pthread_mutex_unlock(&t->lock);
	reader_kick(t->reader);
}

struct reader_hang data_thread_hang(struct data_thread *t, uint32_t stream)
{
	pthread_mutex_lock(&t->lock);
	struct reader_hang hang = t->hang[stream];

	pthread_mutex_unlock(&t->lock);
	return hang;
}

bool data_thread_busy(struct data_thread *t, struct reader_hang *flying)
{
	pthread_mutex_lock(&t->lock);
	bool busy = t->busy;

	*flying = t->flying;
	pthread_mutex_unlock(&t->lock);
	return busy;
}

uint64_t data_thread_turns(struct data_thread *t)
{
	reader_kick(t->reader);
	return atomic_load_explicit(&t->turns, memory_order_relaxed);
}
