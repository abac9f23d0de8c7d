#include "daemon/engine/engine.h"

#include "daemon/engine/feed.h"

#include <assert.h>
#include <stdlib.h>

enum {
	PADDING_A_STEP = 1 << 20, /* bytes of zeros; then other events get their turn */
	LOCAL = 0,		  /* the number of a place */
};

/* What a stream reads from a place. */
struct share {
	unsigned reading;
	struct feeds waiting; /* their next reads have to wait until others of the share end */
};

struct place {
	unsigned depth; /* reads that streams may share */
	unsigned taken; /* of these, in flight: all but the first of each stream */
	struct share share[LIMIT_STREAMS];
};

struct engine {
	struct place place[ENGINE_PLACES];
	struct feeds ready; /* feeds that have something to do; the first has the turn */
	bool paused;
	unsigned failing;    /* feeds whose ENGINE_FAILED is still to be reported */
	unsigned feeds;	     /* attached */
	uint32_t most_peers; /* the largest feed->peers */
	struct feed *feed[LIMIT_SESSIONS];
};

struct engine *engine_new(unsigned depth, unsigned store_depth)
{
	assert(depth > 0);
	struct engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	TAILQ_INIT(&engine->ready);
	for (unsigned i = 0; i < ENGINE_PLACES; i++) {
		engine->place[i].depth = i == LOCAL ? depth : store_depth;
		for (uint32_t stream = 0; stream < LIMIT_STREAMS; stream++)
			TAILQ_INIT(&engine->place[i].share[stream].waiting);
	}
	return engine;
}

void engine_free(struct engine *engine)
{
	assert(!engine || (engine->feeds == 0 && TAILQ_EMPTY(&engine->ready)));
	free(engine);
}

bool engine_busy(const struct engine *engine)
{
	return engine->feeds > 0;
}

/* Asserts the invariants of all feeds and places: not at every step, as it walks over them. */
static void engine_check(const struct engine *engine)
{
	unsigned reading = 0, failing = 0, feeds = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct feed *feed = engine->feed[id];

		if (!feed)
			continue;
		assert(feed->options.id == id);
		assert(feed->state != FEED_LEAVING || feed->reading > 0);
		assert(feed->wake_at == 0 || feed->state == FEED_IDLE || !feed_runs(feed));
		feed_check(feed);
		reading += feed->reading;
		failing += feed->state == FEED_FAILING;
		feeds++;
	}
	for (unsigned i = 0; i < ENGINE_PLACES; i++)
		for (uint32_t stream = 0; stream < LIMIT_STREAMS; stream++) {
			const struct share *share = &engine->place[i].share[stream];

			reading -= share->reading;
			/* It has a read of its own, whose end wakes those that wait. */
			assert(share->reading > 0 || TAILQ_EMPTY(&share->waiting));
		}
	assert(reading == 0 && failing == engine->failing && feeds == engine->feeds);
}

/* ---- turns: deficit round robin, by the cost of reads in bytes ---- */

/* Local reads of a feed in flight. More large rows would fill the device's queues, or keep the data
 * thread if they are cached, while the other feeds wait. */
enum { FLYING_MOST = 512 << 10 };

/* A user's feeds together get the same part of the turns, however many they are. */
static int64_t quantum(const struct engine *engine, const struct feed *feed)
{
	assert(feed->peers > 0 && feed->peers <= engine->most_peers);
	return (int64_t)FEED_QUANTUM * engine->most_peers / feed->peers;
}

/* @list: that of the state, at whose end the feed is now; NULL: it has none. */
static void feed_enter(struct feed *feed, enum feed_state state, struct feeds *list)
{
	if (feed->list)
		TAILQ_REMOVE(feed->list, feed, link);
	if (list)
		TAILQ_INSERT_TAIL(list, feed, link);
	feed->list = list;
	feed->state = state;
}

static void feed_ready(struct engine *engine, struct feed *feed)
{
	feed_enter(feed, FEED_READY, &engine->ready);
}

/* True: its reads in flight are too large to begin another. One that ends makes it ready. */
static bool hold(const struct engine *engine, struct feed *feed)
{
	assert(feed->state == FEED_READY);
	if (feed->flying < FLYING_MOST || engine->feeds == 1)
		return false;
	feed_enter(feed, FEED_HELD, NULL);
	return true;
}

/* The feed that has the turn, or NULL. */
static struct feed *next_turn(struct engine *engine)
{
	struct feed *feed;

	while ((feed = TAILQ_FIRST(&engine->ready)) && feed->credit <= 0) {
		feed->credit += quantum(engine, feed);
		feed_ready(engine, feed);
	}
	return feed;
}

/* Counts the feeds of @user, after one of them came or went. */
static void count_peers(struct engine *engine, uint64_t user)
{
	uint32_t peers = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		peers += engine->feed[id] && engine->feed[id]->options.user == user;
	engine->most_peers = 0;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed)
			continue;
		if (feed->options.user == user)
			feed->peers = peers;
		if (feed->peers > engine->most_peers)
			engine->most_peers = feed->peers;
	}
}

/* ---- shares of streams ---- */

/* Reads of this place that the stream may have in flight now: one of its own, and half of what is
 * free of the rest. */
static unsigned share_most(const struct place *place, const struct share *share)
{
	unsigned more = share->reading > 0 ? share->reading - 1 : 0;

	assert(place->taken <= place->depth && more <= place->taken);
	return 1 + (place->depth - place->taken + more + 1) / 2;
}

/* May the feed begin a read? False: it waits now, after those that wait already. Otherwise feeds
 * whose reads end would take all the room, and the others were never woken. */
static bool may_read(struct engine *engine, struct feed *feed, unsigned number)
{
	struct place *place = &engine->place[number];
	struct share *share = &place->share[feed->options.stream];

	assert(feed->state == FEED_READY);
	if (share->reading < share_most(place, share) && TAILQ_EMPTY(&share->waiting))
		return true;
	assert(share->reading > 0);
	feed_enter(feed, FEED_WAITING, &share->waiting);
	return false;
}

static void share_begin(struct place *place, struct share *share)
{
	place->taken += share->reading > 0;
	share->reading++;
	assert(place->taken <= place->depth);
}

/* Feeds that wait for local reads are woken when an eighth is free, not after every read: there may
 * be many. A GET takes so long that its end may wake all. */
static void share_end(struct engine *engine, struct place *place, struct share *share)
{
	struct feed *feed;

	assert(share->reading > 0);
	share->reading--;
	place->taken -= share->reading > 0;

	unsigned most = share_most(place, share);
	unsigned free = place == &engine->place[LOCAL] ? most / 8 : 0;

	while (share->reading + free < most && (feed = TAILQ_FIRST(&share->waiting)))
		feed_ready(engine, feed);
}

static void read_end(struct engine *engine, struct feed *feed, uint32_t index)
{
	struct place *place = &engine->place[feed_place_of(feed, index)];

	feed_read_ended(feed, index);
	if (feed->state == FEED_HELD && feed->flying < FLYING_MOST)
		feed_ready(engine, feed);
	share_end(engine, place, &place->share[feed->options.stream]);
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
	assert(!feed->list);
	engine->feed[feed->options.id] = NULL;
	engine->feeds--;
	count_peers(engine, feed->options.user);
	emit_plain(out, ENGINE_GONE, feed);
}

/* Stops all feeds of the stream. Each reports it when there is room in the list of actions. */
static void fail_stream(struct engine *engine, uint32_t stream, const struct engine_action *read,
	enum fault_code fault)
{
	assert(fault != FAULT_NONE);
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->options.stream != stream || !feed_runs(feed))
			continue;
		feed_enter(feed, FEED_FAILING, NULL);
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
	feed->credit -= FEED_WAKE_COST;
	emit_plain(out, ENGINE_WAKE, feed);
}

/* ---- events ---- */

static void attach(struct engine *engine, struct feed *feed)
{
	assert(feed && feed->options.id < LIMIT_SESSIONS && !engine->feed[feed->options.id]);
	assert(feed->state == FEED_IDLE && feed->planned == 0 && feed->reading == 0);
	engine->feed[feed->options.id] = feed;
	engine->feeds++;
	count_peers(engine, feed->options.user);
	feed->credit = quantum(engine, feed);
	feed_ready(engine, feed);
	engine_check(engine);
}

static void detach(struct engine *engine, uint32_t id, struct engine_actions *out)
{
	struct feed *feed = engine->feed[id];

	if (!feed)
		return;
	assert(feed->state != FEED_LEAVING);
	engine->failing -= feed->state == FEED_FAILING;
	feed_enter(feed, FEED_LEAVING, NULL);
	if (feed->away > 0)
		emit_plain(out, ENGINE_CANCEL, feed);
	leave_if_idle(engine, feed, out);
}

static void kick(struct engine *engine, uint32_t id)
{
	struct feed *feed = engine->feed[id];

	if (feed && feed->state == FEED_IDLE && feed_awake(feed))
		feed_ready(engine, feed);
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

	if (event->fault && feed_runs(feed)) {
		feed_read_again(feed, index, &read);
		fail_stream(engine, feed->options.stream, &read, event->fault);
	}
	read_end(engine, feed, index);
	if (feed_runs(feed)) {
		assert(event->fault == FAULT_NONE && feed->left[slot] > 0);
		feed->left[slot]--;
		publish(feed, out);
	}
	leave_if_idle(engine, feed, out);
}

static void refill(struct engine *engine)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct feed *feed = engine->feed[id];

		if (feed && feed->state == FEED_IDLE && feed_refill(feed))
			feed_ready(engine, feed);
	}
}

static void report_failures(struct engine *engine, struct engine_actions *out)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS && engine->failing > 0; id++) {
		struct feed *feed = engine->feed[id];

		if (!feed || feed->state != FEED_FAILING)
			continue;
		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE) {
			out->more = true;
			return;
		}
		feed->state = FEED_FAILED;
		engine->failing--;
		emit(out, feed->failure);
	}
}

/* Plans a row, whose read is for @place. Returns the cost of its zeros if it is padding, otherwise
 * 0. */
static uint64_t plan(struct feed *feed, struct place *place, struct engine_actions *out)
{
	struct engine_action read;
	bool wanted = feed_plan(feed, &read);

	feed->credit -= (int64_t)feed->cost;
	if (wanted) {
		share_begin(place, &place->share[feed->options.stream]);
		emit(out, read);
	}
	/* A slot of padding only is ready now, and so is one whose reads are all done. */
	if (feed->row == 0)
		publish(feed, out);
	return wanted ? 0 : feed->cost;
}

/* Plans rows, in turns, while a feed is ready. */
static void pump(struct engine *engine, struct engine_actions *out)
{
	struct feed *feed;
	uint64_t padding = 0;

	while ((feed = next_turn(engine))) {
		if (out->count > ENGINE_ACTIONS - ENGINE_RESERVE || padding > PADDING_A_STEP) {
			out->more = true;
			return;
		}
		unsigned place = feed_place(feed);

		if (hold(engine, feed) || !may_read(engine, feed, place))
			continue;
		switch (feed_room(feed)) {
		case FEED_ROOM:
			padding += plan(feed, &engine->place[place], out);
			break;
		case FEED_HOSTILE:
			feed_enter(feed, FEED_FAILED, NULL);
			emit_plain(out, ENGINE_HOSTILE, feed);
			break;
		case FEED_FULL:
		case FEED_ENDED:
			feed_enter(feed, FEED_IDLE, NULL);
		}
	}
}

void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out)
{
	out->count = 0;
	out->more = false;
	switch (event->type) {
	case ENGINE_ATTACH:
		attach(engine, event->feed);
		break;
	case ENGINE_DETACH:
		detach(engine, event->id, out);
		break;
	case ENGINE_KICK:
		kick(engine, event->id);
		break;
	case ENGINE_DONE:
		done(engine, event, out);
		break;
	case ENGINE_REFILL:
		refill(engine);
		break;
	case ENGINE_TICK:
		engine_check(engine);
		break;
	case ENGINE_PUMP:
		break;
	case ENGINE_PAUSE:
		engine->paused = event->on;
		break;
	}
	report_failures(engine, out);
	if (!engine->paused)
		pump(engine, out);
}
