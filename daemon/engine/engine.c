#include "daemon/engine/engine.h"

#include "daemon/engine/feed.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	TRIES = 3,
	PADDING_A_STEP = 1 << 20, /* bytes of zeros, then other events get their turn */
};

/* What a stream has of the reads in flight. */
struct share {
	unsigned reading;
	bool slow;
	STAILQ_HEAD(, feed) waiting; /* feeds that could go on if it had more */
};

struct engine {
	unsigned depth;
	unsigned reading; /* reads in flight, over all feeds */
	unsigned stuck;	  /* of these, those of slow streams */
	struct share share[LIMIT_STREAMS];
	unsigned failing; /* feeds that have to say so */
	struct feed *feed[LIMIT_SESSIONS];
	struct turn root, user[LIMIT_SESSIONS], run[LIMIT_SESSIONS];
};

struct engine *engine_new(unsigned depth)
{
	struct engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	engine->depth = depth;
	for (uint32_t i = 0; i < LIMIT_STREAMS; i++)
		STAILQ_INIT(&engine->share[i].waiting);
	return engine;
}

void engine_free(struct engine *engine)
{
	assert(!engine || (engine->root.children == 0 && engine->reading == 0));
	free(engine);
}

/* ---- turns ---- */

static struct feed *feed_of(struct turn *leaf)
{
	return (struct feed *)((char *)leaf - offsetof(struct feed, turn));
}

/* Where a feed of this user, or of this run as well, has its place already; otherwise a place of
 * its own. */
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

/* Reads that the stream may have in flight now. */
static unsigned share_most(const struct engine *engine, const struct share *share)
{
	unsigned quarter = engine->depth / 4 ? engine->depth / 4 : 1,
		 left = engine->depth - engine->stuck;

	if (!share->slow)
		return left - left / 4;

	unsigned others = engine->stuck - share->reading;

	return others < quarter ? quarter - others : 0;
}

/* Feeds that waited for it are ready again. */
static void share_wake(struct share *share)
{
	struct feed *feed;

	while ((feed = STAILQ_FIRST(&share->waiting))) {
		STAILQ_REMOVE_HEAD(&share->waiting, waits);
		feed->waiting = false;
		if (feed->state == FEED_RUNNING)
			turn_ready(&feed->turn, true);
	}
}

static void share_wait(struct engine *engine, struct feed *feed)
{
	turn_ready(&feed->turn, false);
	if (!feed->waiting)
		STAILQ_INSERT_TAIL(&share_of(engine, feed)->waiting, feed, waits);
	feed->waiting = true;
}

static void wake_all(struct engine *engine)
{
	for (uint32_t i = 0; i < LIMIT_STREAMS; i++)
		share_wake(&engine->share[i]);
}

static void share_begin(struct engine *engine, struct feed *feed)
{
	struct share *share = share_of(engine, feed);

	engine->reading++;
	share->reading++;
	engine->stuck += share->slow;
}

/* Not for each read that is done: many feeds may wait. */
static void share_end(struct engine *engine, struct feed *feed)
{
	struct share *share = share_of(engine, feed);
	unsigned most;

	engine->reading--;
	feed->reading--;
	share->reading--;
	engine->stuck -= share->slow;
	most = share_most(engine, share);
	if (share->slow) /* the others may have more now */
		wake_all(engine);
	else if (!STAILQ_EMPTY(&share->waiting) && share->reading + most / 8 < most)
		share_wake(share);
}

static void slow(struct engine *engine, uint32_t stream, bool is_slow)
{
	struct share *share = &engine->share[stream];

	if (share->slow == is_slow)
		return;
	share->slow = is_slow;
	engine->stuck += is_slow ? share->reading : -share->reading;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (engine->feed[id] && engine->feed[id]->options.stream == stream)
			turn_apart(&engine->feed[id]->turn, is_slow);
	wake_all(engine);
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
	leave_turns(feed);
	engine->feed[feed->options.id] = NULL;
	emit_plain(out, ENGINE_GONE, feed);
}

/* All feeds of the stream stop. Each says so as soon as there is room for it in the list. */
static void fail_stream(
	struct engine *engine, uint32_t stream, const struct engine_action *read, int fault)
{
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
	if (!feed_publish(feed))
		return;
	turn_spend(&feed->turn, TURN_WAKE, false);
	emit_plain(out, ENGINE_WAKE, feed);
}

/* ---- events ---- */

static void attach(struct engine *engine, struct feed *feed)
{
	assert(feed->options.id < LIMIT_SESSIONS && !engine->feed[feed->options.id]);
	turn_join(&feed->turn, find_run(engine, &feed->options));
	engine->feed[feed->options.id] = feed;
	turn_apart(&feed->turn, share_of(engine, feed)->slow);
	turn_ready(&feed->turn, true);
}

static void detach(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	turn_ready(&feed->turn, false);
	if (feed->waiting)
		STAILQ_REMOVE(&share_of(engine, feed)->waiting, feed, feed, waits);
	feed->waiting = false;
	feed->state = FEED_LEAVING;
	engine->failing -= feed->failing;
	feed->failing = false;
	leave_if_idle(engine, feed, out);
}

static void done(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out)
{
	struct feed *feed = engine->feed[event->tag >> 32];
	uint32_t index = (uint32_t)event->tag;

	assert(feed && feed->reading > 0 && engine->reading > 0);

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
	share_end(engine, feed);
	turn_land(&feed->turn, feed->cost);
	if (event->fault == 0 && feed->state == FEED_RUNNING) {
		feed->left[slot]--;
		publish(feed, out);
	}
	leave_if_idle(engine, feed, out);
}

static void tick(struct engine *engine)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->state != FEED_RUNNING)
			continue;

		bool late = feed_late(feed);
		uint64_t released = feed->released;

		/* A byte may be on its way at this tick; still not here at the next one it was
		 * lost. Liars send none. */
		if (late && feed->late && feed_awake(feed)) {
			feed->lost_wakes +=
				ring_released(&feed->options.ring, feed->published, &released);
			turn_ready(&feed->turn, true);
		}
		feed->late = late;
	}
}

static void tell_failures(struct engine *engine, struct engine_actions *out)
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

/* Plans a row; the bytes of zeros that this cost. */
static uint64_t plan(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	struct engine_action read;
	bool wanted = feed_plan(feed, &read);

	turn_spend(&feed->turn, feed->cost, wanted);
	if (wanted) {
		share_begin(engine, feed);
		emit(out, read);
	}
	if (feed->row ==
		0) /* it may have been padding alone, or its reads were done before its last row */
		publish(feed, out);
	return wanted ? 0 : feed->cost;
}

/* A row of each feed in its turn. Whoever must not read for a while is not ready meanwhile
 * (turn_ready()). */
static void pump(struct engine *engine, struct engine_actions *out)
{
	struct turn *leaf;
	uint64_t padding = 0;

	while (engine->reading < engine->depth && (leaf = turn_next(&engine->root))) {
		struct feed *feed = feed_of(leaf);

		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE || padding > PADDING_A_STEP) {
			out->more = true;
			return;
		}
		if (share_of(engine, feed)->reading >= share_most(engine, share_of(engine, feed))) {
			share_wait(engine, feed);
			continue;
		}
		switch (feed_room(feed)) {
		case FEED_ROOM:
			padding += plan(engine, feed, out);
			break;
		case FEED_HOSTILE:
			feed->state = FEED_FAILED;
			emit_plain(out, ENGINE_HOSTILE, feed);
			turn_ready(leaf, false);
			break;
		case FEED_FULL:
		case FEED_ENDED:
			turn_ready(leaf, false);
		}
	}
}

void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out)
{
	assert(out->count <= ENGINE_ACTIONS - ENGINE_RESERVE);
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
	case ENGINE_TICK:
		tick(engine);
		break;
	case ENGINE_PUMP:
		break;
	case ENGINE_SLOW:
		slow(engine, event->id, event->slow);
		break;
	}
	tell_failures(engine, out);
	pump(engine, out);
}
