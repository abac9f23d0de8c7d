/*
 * The engine alone, in a world where everything happens at the wrong moment.
 *
 * Around one engine there are a few streams (tables without files), a disk, stores and clients.
 * Disk and stores finish reads in any order, and sometimes never. Clients take, hold, release,
 * stall, crash, and return at other cursors with other ranks. Bytes between client and daemon are
 * delayed. One random event happens at a time; then these are checked:
 *
 *   - a slot that the client may read is never written, and has the bytes of the order
 *   - a client that waits for a published slot has a byte on its way to it, and so has a daemon
 *     that waits for a release
 *   - if two feeds can go on, neither gets more than two turns ahead, in bytes; feeds of a user who
 *     has n get an n-th each
 *   - of each place, a stream keeps within its share of the reads in flight, and uses it
 *   - stores that do not answer delay neither local reads, nor other stores, nor the end of a feed
 *   - a failed stream reports that once to each feed
 *   - a stream ends with the right batch on every rank
 *   - memory is not touched after GONE: it is made inaccessible
 *
 * fuzz_ring has clients that write wrong counters.
 */
#include "tests/sim/engine_alone.h"

#include "daemon/engine/feed.h"

#include <sys/mman.h>

struct rig rig;

static uint32_t id_of(const struct client *c)
{
	return (uint32_t)(c - rig.client);
}

/* ---- clients ---- */

/* A cursor anywhere in the stream, with or without a pending mix. */
static struct cursor cursor_make(const struct stream *s)
{
	struct cursor c;
	struct fault fault;
	uint64_t end = cursor_end(&s->begin), near = chance(2) ? 5000 : 30, to = draw(5000);
	double weights[DATASETS];

	CHECK(cursor_copy(&c, &s->begin));
	if (end != UINT64_MAX)
		to = end - draw(near < end ? near : end + 1);
	else if (chance(3))
		to = rng_wide(&world_rng) >> 1;
	CHECK(cursor_seek(&c, to, &fault));
	for (uint32_t d = 0; d < c.datasets; d++)
		weights[d] = d > 0 && chance(3) ? 0 : 1 + (double)draw(9);
	if (!c.epochs && chance(2))
		CHECK(cursor_mix(&c, cursor_mix_at(&c), weights, &fault));
	return c;
}

void *engine_map(uint64_t bytes)
{
	void *at = __real_mmap(
		NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static void step(struct engine_event event);

static void attach(struct client *c)
{
	unsigned stream = (unsigned)draw(STREAMS);
	const struct stream *s = &rig.catalog->stream[stream];
	uint64_t rows = 1 + draw(ROWS_MAX), slots = 1 + draw(SLOTS_MAX);
	struct ring_geometry g;
	struct fault fault;

	*c = (struct client){.state = RUNNING, .stream = stream, .cursor = cursor_make(s)};
	c->world = 1 + draw(5);
	c->rank = draw(c->world);
	c->user = (uint32_t)draw(USERS);
	CHECK(ring_geometry(
		&g, slots, rows, s->begin.seq_len + s->begin.extra, s->token_bytes, 0, &fault));
	c->meta = engine_map(g.meta_bytes);
	c->data = engine_map(g.data_bytes);
	ring_format(&c->ring, &g, c->meta, c->data);
	uint64_t end = cursor_end(&c->cursor), all = c->world * rows;

	c->end = end == UINT64_MAX ? RING_ENDLESS : (end - c->cursor.next + all - 1) / all;
	c->feed = feed_new(&c->cursor, &(struct feed_options){.id = id_of(c),
					       .stream = stream,
					       .user = c->user,
					       .rank = c->rank,
					       .world = c->world,
					       .ring = c->ring,
					       .source = rig.source[stream]});
	CHECK(c->feed && atomic_load(&c->ring.header->end) == c->end);
	rig.attached++;
	memset(rig.ahead, 0, sizeof(rig.ahead)); /* its user's other feeds get less now */
	step((struct engine_event){.type = ENGINE_ATTACH, .id = id_of(c), .feed = c->feed});
}

static void detach(struct client *c)
{
	c->state = LEAVING;
	c->kick = c->wake = c->asleep = false;
	step((struct engine_event){.type = ENGINE_DETACH, .id = id_of(c)});
}

static void bury(struct client *c)
{
	struct ring_geometry g = c->ring.geometry;

	for (unsigned i = 0; i < SLOTS_MAX * ROWS_MAX; i++)
		CHECK(!c->reading[i]);
	feed_free(c->feed);
	cursor_free(&c->cursor);
	CHECK(mprotect(c->meta, g.meta_bytes, PROT_NONE) == 0);
	CHECK(mprotect(c->data, g.data_bytes, PROT_NONE) == 0);
	c->state = ABSENT;
	memset(rig.ahead, 0, sizeof(rig.ahead));
}

/* ---- the engine's actions ---- */

/* The read goes into a slot that the client may not read yet. */
static void check_target(const struct client *c, const struct engine_action *a)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint32_t index = (uint32_t)a->tag, slot = index / g->rows;
	uint64_t row_bytes = (uint64_t)g->window_tokens * g->token_bytes;

	CHECK(a->tag >> 32 == a->id && slot < g->slots && a->tokens == g->window_tokens);
	CHECK(a->to == (uint8_t *)ring_slot_data(&c->ring, slot) + index % g->rows * row_bytes);
	for (uint64_t s = c->released; s < published(c); s++)
		CHECK(s % g->slots != slot);
}

static void begin_read(struct client *c, const struct engine_action *a)
{
	const struct dataset *d = a->owner;
	struct read r = {.action = *a};

	CHECK(c->state == RUNNING && !c->told);
	share_begun(place_of(&r), c->stream);
	CHECK(a->shard < d->table.shards && a->token <= d->table.tokens[a->shard] - a->tokens);
	check_target(c, a);
	CHECK(!c->reading[(uint32_t)a->tag]);
	c->reading[(uint32_t)a->tag] = true;
	rig.read[rig.reads++] = r;
	c->requested++;
	share_charge(c, FEED_ROW_COST + (int64_t)a->tokens * c->ring.geometry.token_bytes);
	share_check(c);
}

/* Reads from stores may end at once, although the store hangs. */
static void cancel(const struct client *c)
{
	unsigned n = 0;

	CHECK(c->state == LEAVING);
	for (unsigned i = 0; i < rig.reads; i++) {
		struct read *r = &rig.read[i];

		if (r->action.id != id_of(c) || place_of(r) == 0)
			continue;
		CHECK(!r->cancelled);
		r->cancelled = true;
		n++;
	}
	CHECK(n > 0);
	rig.cancelled += n;
}

static void perform(const struct engine_action *a)
{
	CHECK(a->id < CLIENTS && rig.client[a->id].state != ABSENT);
	struct client *c = &rig.client[a->id];

	switch (a->type) {
	case ENGINE_READ:
		begin_read(c, a);
		break;
	case ENGINE_CANCEL:
		cancel(c);
		break;
	case ENGINE_WAKE:
		CHECK(c->state == RUNNING);
		c->wake = true;
		share_charge(c, FEED_WAKE_COST);
		break;
	case ENGINE_FAILED:
		CHECK(c->state == FAILED && !c->told);
		c->told = true;
		rig.failures++;
		break;
	case ENGINE_HOSTILE:
		CHECK(!"a client that is not hostile");
		break;
	case ENGINE_GONE:
		CHECK(c->state == LEAVING && a->feed == c->feed);
		bury(c);
		break;
	}
}

static void step(struct engine_event event)
{
	do {
		engine_step(rig.engine, &event, &rig.out);
		for (unsigned i = 0; i < rig.out.count; i++)
			perform(&rig.out.action[i]);
		event = (struct engine_event){.type = ENGINE_PUMP};
	} while (rig.out.more);
	share_stepped();
}

/* ---- reads end ---- */

static void fail_stream(unsigned stream)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (rig.client[i].state == RUNNING && rig.client[i].stream == stream &&
			!rig.client[i].told)
			rig.client[i].state = FAILED;
}

/* With its tokens or, with half of them, with a fault. */
static void finish_read(struct read r, unsigned faults)
{
	struct client *c = &rig.client[r.action.id];
	struct engine_event event = {.type = ENGINE_DONE, .tag = r.action.tag};
	bool bad = r.cancelled ? chance(2) : chance(faults);

	check_target(c, &r.action);
	engine_fill(r.action.owner, r.action.shard, r.action.token,
		bad ? r.action.tokens / 2 : r.action.tokens, r.action.to);
	c->reading[(uint32_t)r.action.tag] = false;
	if (bad) {
		event.fault = FAULT_IO;
		rig.faults++;
		if (c->state == RUNNING && !c->told)
			fail_stream(c->stream);
	}
	share_ended(place_of(&r), c->stream);
	step(event);
}

static void some_read(unsigned faults)
{
	if (rig.reads == 0)
		return;
	unsigned at = (unsigned)draw(rig.reads);
	struct read r = rig.read[at];
	unsigned place = place_of(&r);

	if (place == 0 && rig.slow[rig.client[r.action.id].stream] && !chance(200))
		return; /* it hangs */
	if (rig.hung[place] && !r.cancelled)
		return;
	rig.read[at] = rig.read[--rig.reads];
	finish_read(r, faults);
}

/* ---- a client's turn ---- */

static void release(struct client *c, uint64_t n)
{
	for (uint64_t s = c->released; s < c->released + n; s++)
		CHECK(c->seen[s % SLOTS_MAX] == engine_slot_hash(c, s));
	c->released += n;

	uint64_t wake_at = ring_release(&c->ring, c->released);

	if (wake_at == 0 || wake_at == c->answered)
		return;
	c->answered = wake_at;
	c->kick = !chance(100);
	c->lost_kick |= !c->kick;
}

/* Announces a wait. Wakes a daemon that sleeps, because the release it waits for may not come while
 * this client keeps its slots. */
static void await(struct client *c)
{
	rig.waits++;
	if (ring_wait_begin(&c->ring, c->taken)) {
		ring_wait_end(&c->ring);
		return;
	}
	c->asleep = true;
	if (atomic_load(&c->ring.header->wake_at) != 0)
		c->kick = true;
}

static void turn(struct client *c)
{
	uint64_t held = c->taken - c->released;

	if (c->asleep)
		return;
	if (held > 0 && (held == c->ring.geometry.slots || chance(2))) {
		release(c, 1 + draw(held));
	} else if (published(c) > c->taken) {
		CHECK(c->taken < c->end);
		engine_check_slot(c, c->taken);
		c->seen[c->taken % SLOTS_MAX] = engine_slot_hash(c, c->taken);
		c->taken++;
		rig.slots++;
	} else if (c->taken == c->end) {
		detach(c);
	} else {
		await(c);
	}
}

static void kick(struct client *c)
{
	c->kick = c->old_kick = false;
	step((struct engine_event){.type = ENGINE_KICK, .id = id_of(c)});
}

static void wake(struct client *c)
{
	c->wake = c->asleep = false;
	ring_wait_end(&c->ring);
}

static void client_event(struct client *c)
{
	if (c->state == ABSENT) {
		if (chance(20))
			attach(c);
	} else if (c->state == LEAVING) {
		return;
	} else if (chance(1500) || c->told) {
		rig.crashes += !c->told;
		detach(c);
	} else if (c->kick && chance(2)) {
		kick(c);
	} else if (c->wake && chance(2)) {
		wake(c);
	} else if (chance(c->stalled ? 60 : 300)) {
		c->stalled = !c->stalled;
	} else if (!c->stalled && c->state == RUNNING) {
		turn(c);
	}
}

/* ---- the clock ---- */

/* Afterwards less than a sixteenth of a ring is free, or its feed is awake, or will be kicked. No
 * feed waits for a kick that was lost. */
static void refill(void)
{
	step((struct engine_event){.type = ENGINE_REFILL});
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &rig.client[i];

		if (c->state != RUNNING || c->told)
			continue;

		const struct ring_geometry *g = &c->ring.geometry;
		uint64_t wake_at = atomic_load(&c->ring.header->wake_at);

		CHECK(wake_at == 0 ||
			(c->released < wake_at &&
				(ring_client_waits(&c->ring, published(c)) ||
					c->released + g->slots - c->requested / g->rows <
						ring_part(g, 16))));
	}
}

/* A second passes. No byte takes longer than that. */
static void tick(void)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (rig.client[i].state != ABSENT && rig.client[i].kick && rig.client[i].old_kick)
			kick(&rig.client[i]);
	step((struct engine_event){.type = ENGINE_TICK});
	for (unsigned i = 0; i < CLIENTS; i++)
		rig.client[i].old_kick = rig.client[i].kick;
	refill();
}

/* ---- events ---- */

/* A side that waits for progress which happened, or could happen, has a byte on its way, unless the
 * simulator dropped it. */
static void check_waits(const struct client *c)
{
	uint64_t wake_at = atomic_load(&c->ring.header->wake_at);

	CHECK(!c->asleep || published(c) <= c->taken || c->wake);
	if (wake_at == 0 || c->lost_kick || c->kick)
		return;
	CHECK(c->released < wake_at);
	for (unsigned i = 0; i < c->ring.geometry.slots * c->ring.geometry.rows; i++)
		if (c->reading[i])
			return;
	CHECK(!c->asleep || c->wake); /* otherwise both would sleep forever */
}

static void check_all(void)
{
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &rig.client[i];

		if (c->state == ABSENT)
			continue;
		CHECK(published(c) <= c->end);
		CHECK(published(c) - c->released <= c->ring.geometry.slots);
		CHECK(c->state != FAILED || c->told);
		if (c->state == RUNNING)
			check_waits(c);
		/* Holds even if the storage of other streams does not answer. */
		CHECK(rig.out.more || !share_hungry(c) || !share_free(c));
	}
}

static void event(void)
{
	uint32_t stream = (uint32_t)draw(STREAMS);
	unsigned store = rig.stores ? 1 + (unsigned)draw(STORES) : 0;

	if (store && chance(rig.hung[store] ? 300 : 1500))
		rig.hung[store] = !rig.hung[store];
	if (chance(rig.slow[stream] ? 100 : 400))
		rig.slow[stream] = !rig.slow[stream];
	if (chance(rig.storm ? 100 : 4000))
		rig.storm = !rig.storm;
	if (chance(120))
		tick();
	else if (chance(60))
		refill();
	else if (chance(3))
		some_read(rig.storm ? 4 : 200);
	else
		client_event(&rig.client[draw(CLIENTS)]);
	share_close();
	check_all();
}

/* ---- the end ---- */

/* Without faults every client makes progress: ten more slots, or its end. */
static void all_make_progress(void)
{
	uint64_t goal[CLIENTS];
	unsigned left = CLIENTS;

	memset(rig.slow, 0, sizeof(rig.slow));
	memset(rig.hung, 0, sizeof(rig.hung));
	for (unsigned i = 0; i < CLIENTS; i++)
		goal[i] = rig.client[i].taken + 10;
	for (uint64_t turns = 0; left > 0; turns++) {
		CHECK(turns < 100000);
		left = 0;
		some_read(0);
		if (turns % 500 == 499)
			tick();
		for (unsigned i = 0; i < CLIENTS; i++) {
			struct client *c = &rig.client[i];

			if (c->state != RUNNING || c->told || c->taken >= goal[i])
				continue;
			left++;
			if (c->kick)
				kick(c);
			else if (c->wake)
				wake(c);
			else
				turn(c);
			check_all();
		}
	}
}

/* Stores that hang keep nobody. */
static void all_leave(void)
{
	for (unsigned i = 1; i <= STORES; i++)
		rig.hung[i] = true;
	for (unsigned i = 0; i < CLIENTS; i++)
		if (rig.client[i].state == RUNNING || rig.client[i].state == FAILED)
			detach(&rig.client[i]);
	while (rig.reads > 0)
		some_read(10);
	for (unsigned i = 0; i < CLIENTS; i++)
		CHECK(rig.client[i].state == ABSENT);
	engine_free(rig.engine);
}

/* ---- a history ---- */

static void streams(void)
{
	streams_make();
	for (unsigned s = 0; s < STREAMS; s++) {
		struct source *first = &world_stream[s].source[0];

		if (chance(4)) { /* offsets need 64 bits */
			first->tokens[0] += UINT64_C(1) << 40;
			first->lo = 0;
			first->hi = ORDER_UNITS;
		}
	}
	rig.catalog = catalog_make(1, 0);
	for (unsigned s = 0; s < STREAMS; s++)
		for (unsigned d = 0; d < world_stream[s].datasets; d++) {
			const struct dataset *owner = &rig.catalog->stream[s].dataset[d];

			rig.source[s][d] =
				(struct feed_source){.table = &owner->table, .owner = owner};
			if (rig.stores && s > 0 && !chance(3)) /* the first is always local */
				rig.source[s][d].place = 1 + (unsigned)draw(STORES);
		}
}

/* A run without one of these would show nothing. */
static bool is_covered(void)
{
	return rig.slots > 1000 && rig.attached > 20 && rig.crashes > 5 && rig.waits > 100 &&
	       rig.faults > 10 && rig.failures > 0 && rig.shared > 100;
}

void engine_history(uint64_t seed, uint64_t events)
{
	world_rng.state = order_mix64(seed) | 1;
	rig.depth = 1 + (unsigned)draw(DEPTH_MAX);
	rig.stores = !chance(3);
	rig.store_depth = 1 + (unsigned)draw(DEPTH_MAX);
	rig.engine = engine_new(rig.depth, rig.store_depth);
	streams();
	engine_counts();
	/* Rare events may need a longer history. */
	for (uint64_t i = 0; i < events || (i < 8 * events && !is_covered()); i++)
		event();
	CHECK(events < 100000 || is_covered());
	all_make_progress();
	all_leave();
}
