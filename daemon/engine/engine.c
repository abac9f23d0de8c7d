#include "daemon/engine/engine.h"

#include "daemon/engine/feed.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	TRIES = 3,
	PADDING_A_STEP = 1 << 20, /* bytes of zeros; then other events get their turn */
	LOCAL = 0,		  /* the number of a queue */
};

/* Reads in flight. Those of the local queue are shared out to streams. */
struct queue {
	unsigned depth, reading;
	struct feeds waiting; /* their next row needs it, and it is full */
};

/* A stream's part of the local reads in flight. */
struct share {
	unsigned reading;
	unsigned unanswered; /* reads begun since one has ended */
	bool slow;
	bool silent;	      /* many reads begun, and none has ended since */
	struct feeds waiting; /* feeds that could go on with a larger share */
};

struct engine {
	struct queue queue[ENGINE_QUEUES];
	unsigned stuck;	 /* local reads in flight of slow streams */
	unsigned silent; /* and those of silent streams */
	unsigned stored; /* feeds that read from stores, too */
	struct share share[LIMIT_STREAMS];
	bool paused;
	unsigned failing; /* feeds whose ENGINE_FAILED is still to be reported */
	struct feed *feed[LIMIT_SESSIONS];
	struct turn root, user[LIMIT_SESSIONS], run[LIMIT_SESSIONS];
};

struct engine *engine_new(unsigned depth)
{
	assert(depth > 0);
	struct engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	for (unsigned i = 0; i < ENGINE_QUEUES; i++) {
		engine->queue[i].depth = i == LOCAL ? depth : 1;
		STAILQ_INIT(&engine->queue[i].waiting);
	}
	for (uint32_t i = 0; i < LIMIT_STREAMS; i++)
		STAILQ_INIT(&engine->share[i].waiting);
	return engine;
}

void engine_store_depth(struct engine *engine, unsigned depth)
{
	assert(depth > 0 && engine->root.children == 0);
	for (unsigned i = LOCAL + 1; i < ENGINE_QUEUES; i++)
		engine->queue[i].depth = depth;
}

void engine_free(struct engine *engine)
{
	assert(!engine || (engine->root.children == 0 && engine->queue[LOCAL].reading == 0));
	free(engine);
}

/* ---- invariants ---- */

/* Of the feed at @id of the table. */
static void check_feed(const struct engine *engine, uint32_t id)
{
	const struct feed *feed = engine->feed[id];

	assert(feed->options.id == id);
	assert(feed->turn.parent && feed->turn.parent->parent);
	assert(feed->turn.parent->parent->parent == &engine->root);
	assert(feed->turn.apart == engine->share[feed->options.stream].slow);
	assert(feed->state != FEED_LEAVING || feed->reading > 0);
	feed_check(feed);
}

/* Walks over all sessions, so not at every step. */
static void engine_check(const struct engine *engine)
{
	unsigned reading = 0, away = 0, failing = 0, shared = 0, stuck = 0, silent = 0, stored = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct feed *feed = engine->feed[id];

		if (!feed)
			continue;
		check_feed(engine, id);
		reading += feed->reading - feed->away;
		away += feed->away;
		stored += feed->stored;
		failing += feed->failing;
	}
	for (unsigned i = 0; i < ENGINE_QUEUES; i++) {
		assert(engine->queue[i].reading <= engine->queue[i].depth);
		away -= i == LOCAL ? 0 : engine->queue[i].reading;
	}
	for (uint32_t i = 0; i < LIMIT_STREAMS; i++) {
		shared += engine->share[i].reading;
		stuck += engine->share[i].slow ? engine->share[i].reading : 0;
		silent += engine->share[i].silent ? engine->share[i].reading : 0;
		assert(!engine->share[i].slow || !engine->share[i].silent);
	}
	assert(away == 0 && stored == engine->stored);
	assert(reading == engine->queue[LOCAL].reading && shared == reading);
	assert(stuck == engine->stuck && silent == engine->silent && stuck + silent <= reading);
	assert(failing == engine->failing);
	turn_check(&engine->root);
}

/* ---- turns ---- */

static struct feed *feed_of(struct turn *leaf)
{
	return (struct feed *)((char *)leaf - offsetof(struct feed, turn));
}

/* The node of this user: that of an attached feed, or a new one. */
static struct turn *find_user(struct engine *engine, const struct feed_options *o)
{
	struct turn *user = engine->user;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (engine->feed[id] && engine->feed[id]->options.user == o->user)
			return engine->feed[id]->turn.parent->parent;
	while (user->parent)
		user++;
	*user = (struct turn){0};
	turn_join(user, &engine->root);
	return user;
}

/* The node of this run, likewise. */
static struct turn *find_run(struct engine *engine, const struct feed_options *o)
{
	struct turn *run = engine->run;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (engine->feed[id] && engine->feed[id]->options.user == o->user &&
			engine->feed[id]->options.run == o->run)
			return engine->feed[id]->turn.parent;
	while (run->parent)
		run++;
	*run = (struct turn){0};
	turn_join(run, find_user(engine, o));
	return run;
}

static void leave_turns(struct feed *feed)
{
	struct turn *run = feed->turn.parent, *user = run->parent;

	assert(run->children > 0 && user->children > 0);
	turn_leave(&feed->turn);
	if (run->children == 0)
		turn_leave(run);
	if (user->children == 0)
		turn_leave(user);
}

/* ---- shares of streams ---- */

static struct share *share_of(struct engine *engine, const struct feed *feed)
{
	return &engine->share[feed->options.stream];
}

/*
 * Reads that the stream may have in flight now: three quarters of those that slow and silent
 * streams leave. So several streams whose storage stops answering at once leave some to the rest,
 * before it is known that they are slow.
 */
static unsigned share_most(const struct engine *engine, const struct share *share)
{
	const struct queue *local = &engine->queue[LOCAL];
	unsigned quarter = local->depth / 4 ? local->depth / 4 : 1,
		 left = local->depth - engine->stuck - engine->silent;

	assert(engine->stuck + engine->silent <= local->depth && share->reading <= local->reading);
	left += share->silent ? share->reading : 0;
	if (!share->slow)
		return left - left / 4;

	unsigned others = engine->stuck - share->reading;

	return others < quarter ? quarter - others : 0;
}

/* Makes the feed wait in the list @waiting. */
static void feed_rests(struct feed *feed, struct feeds *waiting)
{
	assert(!feed->waiting);
	turn_ready(&feed->turn, false);
	STAILQ_INSERT_TAIL(waiting, feed, waits);
	feed->waiting = waiting;
}

/* Makes the feeds that wait in the list ready. */
static void feeds_wake(struct feeds *waiting)
{
	struct feed *feed;

	while ((feed = STAILQ_FIRST(waiting))) {
		STAILQ_REMOVE_HEAD(waiting, waits);
		feed->waiting = NULL;
		if (feed->state == FEED_RUNNING)
			turn_ready(&feed->turn, true);
	}
}

/* Whether waiting feeds should be woken: not after every read, because there may be many. */
static bool is_roomy(unsigned reading, unsigned most)
{
	return reading + most / 8 < most;
}

static void wake_all(struct engine *engine)
{
	for (uint32_t i = 0; i < LIMIT_STREAMS; i++)
		feeds_wake(&engine->share[i].waiting);
	feeds_wake(&engine->queue[LOCAL].waiting);
}

/*
 * A stream counts as silent when it has begun a quarter of its share since a read of it has ended.
 * One whose storage answers has begun about an eighth.
 */
static void share_begin(struct engine *engine, struct feed *feed)
{
	struct share *share = share_of(engine, feed);

	share->unanswered++;
	if (!share->slow && !share->silent && share->unanswered > share_most(engine, share) / 4) {
		share->silent = true;
		engine->silent += share->reading;
	}
	share->reading++;
	engine->stuck += share->slow;
	engine->silent += share->silent;
}

/* Returns whether it was silent: then other shares may be larger now. */
static bool share_answered(struct engine *engine, struct share *share)
{
	bool silent = share->silent;

	share->unanswered = 0;
	share->silent = false;
	engine->silent -= silent ? share->reading : 0;
	return silent;
}

static void share_end(struct engine *engine, struct feed *feed)
{
	struct share *share = share_of(engine, feed);

	assert(share->reading > 0 && (!share->slow || engine->stuck > 0));
	bool larger = share_answered(engine, share) || share->slow;

	share->reading--;
	engine->stuck -= share->slow;
	if (larger) /* other shares */
		wake_all(engine);
	else if (!STAILQ_EMPTY(&share->waiting) &&
		 is_roomy(share->reading, share_most(engine, share)))
		feeds_wake(&share->waiting);
}

static void slow(struct engine *engine, uint32_t stream, bool is_slow)
{
	struct share *share = &engine->share[stream];

	assert(stream < LIMIT_STREAMS);
	if (share->slow == is_slow)
		return;
	share_answered(engine, share);
	share->slow = is_slow;
	engine->stuck += is_slow ? share->reading : -share->reading;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (engine->feed[id] && engine->feed[id]->options.stream == stream)
			turn_apart(&engine->feed[id]->turn, is_slow);
	wake_all(engine);
}

/* ---- queues ---- */

static void read_begin(struct engine *engine, struct feed *feed, unsigned number)
{
	struct queue *queue = &engine->queue[number];

	assert(queue->reading < queue->depth && !feed->waiting);
	queue->reading++;
	if (number == LOCAL)
		share_begin(engine, feed);
}

static void read_end(struct engine *engine, struct feed *feed, unsigned number)
{
	struct queue *queue = &engine->queue[number];

	assert(queue->reading > 0 && feed->reading > 0);
	queue->reading--;
	feed->reading--;
	if (number == LOCAL) {
		share_end(engine, feed);
		turn_land(&feed->turn, feed->cost);
	} else {
		assert(feed->away > 0);
		feed->away--;
	}

	/* Those that may hang for ever are not waited for. */
	unsigned hung = number == LOCAL ? engine->stuck + engine->silent : 0;

	if (is_roomy(queue->reading - hung, queue->depth - hung))
		feeds_wake(&queue->waiting);
}

/* ---- actions ---- */

static void emit(struct engine_actions *out, struct engine_action action)
{
	assert(out->count < ENGINE_ACTIONS);
	out->action[out->count++] = action;
}

static void emit_plain(struct engine_actions *out, int type, struct feed *feed)
{
	emit(out, (struct engine_action){.type = type, .id = feed->options.id, .feed = feed});
}

static void leave_if_idle(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	if (feed->state != FEED_LEAVING || feed->reading > 0)
		return;
	assert(!feed->waiting && !feed->failing);
	leave_turns(feed);
	engine->stored -= feed->stored;
	engine->feed[feed->options.id] = NULL;
	emit_plain(out, ENGINE_GONE, feed);
}

/* Stops all feeds of the stream. Each reports it when there is room in the list of actions. */
static void fail_stream(struct engine *engine, uint32_t stream, const struct engine_action *read,
	enum fault_code fault)
{
	assert(fault != FAULT_NONE);
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->options.stream != stream || feed->state != FEED_RUNNING)
			continue;
		feed->state = FEED_FAILED;
		turn_ready(&feed->turn, false);
		feed->failing = true;
		engine->failing++;
		feed->failure = *read;
		feed->failure.type = ENGINE_FAILED;
		feed->failure.id = id;
		feed->failure.fault = fault;
	}
}

static void publish(struct feed *feed, struct engine_actions *out)
{
	bool first = feed->published == 0, wake = feed_publish(feed);

	/* It may have been at FEED_FIRST. A feed that sleeps or waits becomes ready elsewhere. */
	if (first && feed->published > 0 && feed->wake_at == 0 && !feed->waiting)
		turn_ready(&feed->turn, true);
	if (!wake)
		return;
	turn_spend(&feed->turn, TURN_WAKE, false);
	emit_plain(out, ENGINE_WAKE, feed);
}

/* ---- events ---- */

static void attach(struct engine *engine, struct feed *feed)
{
	assert(feed->options.id < LIMIT_SESSIONS && !engine->feed[feed->options.id]);
	assert(feed->state == FEED_RUNNING && feed->planned == 0 && feed->reading == 0);
	turn_join(&feed->turn, find_run(engine, &feed->options));
	engine->feed[feed->options.id] = feed;
	engine->stored += feed->stored;
	turn_apart(&feed->turn, share_of(engine, feed)->slow);
	turn_ready(&feed->turn, true);
	feed_check_slots(feed);
	engine_check(engine);
}

static void detach(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	feed_check_slots(feed);
	assert(feed->state != FEED_LEAVING);
	turn_ready(&feed->turn, false);
	if (feed->waiting)
		STAILQ_REMOVE(feed->waiting, feed, feed, waits);
	feed->waiting = NULL;
	feed->state = FEED_LEAVING;
	engine->failing -= feed->failing;
	feed->failing = false;
	if (feed->away > 0)
		emit_plain(out, ENGINE_CANCEL, feed);
	leave_if_idle(engine, feed, out);
}

static void done(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out)
{
	assert(event->tag >> 32 < LIMIT_SESSIONS);
	struct feed *feed = engine->feed[event->tag >> 32];
	uint32_t index = (uint32_t)event->tag;

	assert(feed && feed->reading > 0);

	uint32_t slot = index / feed->options.ring.geometry.rows;
	struct engine_action read;

	if (event->fault && feed->state == FEED_RUNNING) {
		feed_read_again(feed, index, &read);
		if (event->retryable && ++feed->retries[index] < TRIES) {
			emit(out, read);
			return;
		}
		fail_stream(engine, feed->options.stream, &read, event->fault);
	}
	read_end(engine, feed, feed_queue_of(feed, index));
	if (event->fault == FAULT_NONE && feed->state == FEED_RUNNING) {
		assert(feed->left[slot] > 0);
		feed->left[slot]--;
		publish(feed, out);
	}
	leave_if_idle(engine, feed, out);
}

static void look(struct engine *engine)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (feed && feed->state == FEED_RUNNING && feed_early(feed))
			turn_ready(&feed->turn, true);
	}
}

static void tick(struct engine *engine, struct engine_actions *out)
{
	engine_check(engine);
	out->active = false;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->state != FEED_RUNNING)
			continue;
		out->active |= feed_active(feed);
		if (feed_overdue(feed))
			turn_ready(&feed->turn, true);
	}
}

static void report_failures(struct engine *engine, struct engine_actions *out)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS && engine->failing > 0; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || !feed->failing)
			continue;
		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE) {
			out->more = true;
			return;
		}
		feed->failing = false;
		engine->failing--;
		emit(out, feed->failure);
	}
}

/*
 * Plans a row, whose read is for queue @number. Returns the cost of its zeros if it is padding,
 * otherwise 0. Reads from stores are paid for, too. But they are not in flight for turns: local
 * reads do not wait for them.
 */
static uint64_t plan(
	struct engine *engine, struct feed *feed, unsigned number, struct engine_actions *out)
{
	struct engine_action read;
	bool wanted = feed_plan(feed, &read);

	turn_spend(&feed->turn, feed->cost, wanted && number == LOCAL);
	if (wanted) {
		read_begin(engine, feed, number);
		emit(out, read);
	}
	/* A slot of padding only is ready now, and so is one whose reads are all done. */
	if (feed->row == 0)
		publish(feed, out);
	return wanted ? 0 : feed->cost;
}

static bool is_full(const struct queue *queue)
{
	return queue->reading == queue->depth;
}

/* May the feed begin a read in queue @number? False: it waits now, after those that wait already.
 * Otherwise feeds whose reads end would take all the room, and the others were never woken. */
static bool may_read(struct engine *engine, struct feed *feed, unsigned number)
{
	struct share *share = share_of(engine, feed);
	struct queue *queue = &engine->queue[number];

	if (is_full(queue) || !STAILQ_EMPTY(&queue->waiting))
		feed_rests(feed, &queue->waiting);
	else if (number == LOCAL &&
		 (share->reading >= share_most(engine, share) || !STAILQ_EMPTY(&share->waiting)))
		feed_rests(feed, &share->waiting);
	return !feed->waiting;
}

/* Plans rows, in turns. A feed that cannot go on is made not ready, with turn_ready(). */
static void pump(struct engine *engine, struct engine_actions *out)
{
	struct turn *leaf;
	uint64_t padding = 0;

	while ((engine->stored > 0 || !is_full(&engine->queue[LOCAL])) &&
		(leaf = turn_next(&engine->root))) {
		struct feed *feed = feed_of(leaf);
		unsigned number = feed_queue(feed);

		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE || padding > PADDING_A_STEP) {
			out->more = true;
			return;
		}
		if (!may_read(engine, feed, number))
			continue;
		switch (feed_room(feed)) {
		case FEED_ROOM:
			padding += plan(engine, feed, number, out);
			break;
		case FEED_HOSTILE:
			feed->state = FEED_FAILED;
			emit_plain(out, ENGINE_HOSTILE, feed);
			turn_ready(leaf, false);
			break;
		case FEED_FULL:
		case FEED_FIRST:
		case FEED_ENDED:
			turn_ready(leaf, false);
		}
	}
}

void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out)
{
	assert(out->count <= ENGINE_ACTIONS - ENGINE_RESERVE);
	assert(event->type != ENGINE_ATTACH || event->feed);
	out->more = false;
	struct feed *feed = event->id < LIMIT_SESSIONS ? engine->feed[event->id] : NULL;

	switch (event->type) {
	case ENGINE_ATTACH:
		attach(engine, event->feed);
		break;
	case ENGINE_DETACH:
		if (feed)
			detach(engine, feed, out);
		break;
	case ENGINE_KICK:
		if (feed && feed->state == FEED_RUNNING && feed_awake(feed))
			turn_ready(&feed->turn, true);
		break;
	case ENGINE_DONE:
		done(engine, event, out);
		break;
	case ENGINE_LOOK:
		look(engine);
		break;
	case ENGINE_TICK:
		tick(engine, out);
		break;
	case ENGINE_PUMP:
		break;
	case ENGINE_SLOW:
		slow(engine, event->id, event->on);
		break;
	case ENGINE_PAUSE:
		engine->paused = event->on;
		break;
	}
	report_failures(engine, out);
	if (!engine->paused)
		pump(engine, out);
}
