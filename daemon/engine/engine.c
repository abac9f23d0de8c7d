#include "engine.h"

#include "feed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 3 };

struct engine {
	unsigned depth;
	unsigned reading; /* reads in flight, over all feeds */
	struct feed *run; /* ring of feeds with something to do; the next in turn */
	struct feed *feed[LIMIT_SESSIONS];
};

struct engine *engine_new(unsigned depth)
{
	struct engine *engine = calloc(1, sizeof(*engine));

	if (engine)
		engine->depth = depth;
	return engine;
}

void engine_free(struct engine *engine)
{
	assert(!engine || (!engine->run && engine->reading == 0));
	free(engine);
}

/* ---- the run list: a slot at a time in turn ---- */

static void run_add(struct engine *engine, struct feed *feed)
{
	if (feed->queued)
		return;
	feed->queued = true;
	if (!engine->run) {
		engine->run = feed->next = feed->before = feed;
		return;
	}
	feed->next = engine->run;
	feed->before = engine->run->before;
	feed->before->next = feed;
	feed->next->before = feed;
}

static void run_remove(struct engine *engine, struct feed *feed)
{
	if (!feed->queued)
		return;
	feed->queued = false;
	feed->before->next = feed->next;
	feed->next->before = feed->before;
	if (engine->run == feed)
		engine->run = feed->next == feed ? NULL : feed->next;
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
	assert(!feed->queued);
	engine->feed[feed->options.id] = NULL;
	emit_plain(out, ENGINE_GONE, feed);
}

/* All feeds of the stream stop. Each says so in its turn, for there may be more of them than the list has
 * room. */
static void fail_stream(struct engine *engine, uint32_t stream, const struct engine_action *read, int fault)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->options.stream != stream || feed->state != FEED_RUNNING)
			continue;
		feed->state = FEED_FAILED;
		feed->failing = true;
		feed->failure = *read;
		feed->failure.type = ENGINE_FAILED;
		feed->failure.id = id;
		feed->failure.fault = fault;
		run_add(engine, feed);
	}
}

static void publish(struct feed *feed, struct engine_actions *out)
{
	if (feed_publish(feed))
		emit_plain(out, ENGINE_WAKE, feed);
}

/* ---- events ---- */

static void attach(struct engine *engine, struct feed *feed)
{
	assert(feed->options.id < LIMIT_SESSIONS && !engine->feed[feed->options.id]);
	engine->feed[feed->options.id] = feed;
	run_add(engine, feed);
}

static void detach(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	run_remove(engine, feed);
	feed->state = FEED_LEAVING;
	feed->failing = false;
	leave_if_idle(engine, feed, out);
}

static void done(struct engine *engine, const struct engine_event *event, struct engine_actions *out)
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
	engine->reading--;
	feed->reading--;
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

		/* A byte may be on its way at this tick; still not here at the next one it was lost. Liars
		 * send none. */
		if (late && feed->late && feed_awake(feed)) {
			feed->lost_wakes += ring_released(&feed->options.ring, feed->published, &released);
			run_add(engine, feed);
		}
		feed->late = late;
	}
}

/* One row of the feed in turn, or what else it has to say. False if it leaves the list. */
static bool run_once(struct engine *engine, struct feed *feed, struct engine_actions *out)
{
	struct engine_action read;

	if (feed->failing) {
		feed->failing = false;
		emit(out, feed->failure);
	}
	if (feed->state != FEED_RUNNING)
		return false;
	switch (feed_room(feed)) {
	case FEED_ROOM:
		break;
	case FEED_HOSTILE:
		feed->state = FEED_FAILED;
		emit_plain(out, ENGINE_HOSTILE, feed);
		return false;
	case FEED_FULL:
	case FEED_ENDED:
		return false;
	}
	if (feed_plan(feed, &read)) {
		engine->reading++;
		emit(out, read);
	}
	if (feed->row == 0) {
		publish(feed,
			out); /* it may have been padding alone, or its reads were done before its last row */
		engine->run = feed->next;
	}
	return true;
}

static void pump(struct engine *engine, struct engine_actions *out)
{
	while (engine->run && engine->reading < engine->depth) {
		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE) {
			out->more = true;
			return;
		}
		struct feed *feed = engine->run;

		if (!run_once(engine, feed, out))
			run_remove(engine, feed);
	}
}

void engine_step(struct engine *engine, const struct engine_event *event, struct engine_actions *out)
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
			run_add(engine, feed);
		break;
	case ENGINE_DONE:
		done(engine, event, out);
		break;
	case ENGINE_TICK:
		tick(engine);
		break;
	case ENGINE_PUMP:
		break;
	}
	pump(engine, out);
}
