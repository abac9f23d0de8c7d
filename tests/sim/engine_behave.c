/* Events around the engine: reads end, seconds pass, clients take, release, wait and cheat. */
#include "tests/sim/engine_sim.h"

void client_attach(struct sim *sim, struct client *c)
{
	client_make(sim, c);
	sim->counts.attached++;
	step(sim,
		(struct engine_event){.type = ENGINE_ATTACH, .id = id_of(sim, c), .feed = c->feed});
}

void client_detach(struct sim *sim, struct client *c)
{
	c->state = LEAVING;
	c->kick = c->wake = c->asleep = false;
	step(sim, (struct engine_event){.type = ENGINE_DETACH, .id = id_of(sim, c)});
}

static void fail_stream(struct sim *sim, const struct stream *s)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (sim->client[i].state == RUNNING && sim->client[i].stream == s &&
			!sim->client[i].told)
			sim->client[i].state = FAILED;
}

/* Ends the read @r: with its tokens or, with half of them, with a fault. */
static void finish_read(struct sim *sim, struct read r, unsigned faults)
{
	struct client *c = client_of(sim, r.action.id);
	const struct dataset *d = r.action.owner;
	struct engine_event event = {.type = ENGINE_DONE, .id = UINT32_MAX, .tag = r.action.tag};
	bool bad = r.cancelled ? one_in(sim, 2) : faults > 0 && one_in(sim, faults);

	step_check_target(sim, c, &r.action);
	stream_tokens(d, r.action.shard, r.action.token,
		bad ? r.action.tokens / 2 : r.action.tokens, c->ring.geometry.token_bytes,
		r.action.to);
	stream_annotations(&r.action, c->ring.geometry.token_bytes, bad);
	c->reading[(uint32_t)r.action.tag] = false;
	if (bad) {
		event.fault = 5;
		event.retryable = !r.cancelled && !one_in(sim, 20);
		sim->counts.faults++;
		if (c->state == RUNNING && !c->told && (!event.retryable || r.tries == TRIES))
			fail_stream(sim, c->stream);
	}
	if (d->queue == 0 &&
		(!bad || !event.retryable || r.tries == TRIES || c->state != RUNNING || c->told))
		share_answered(sim, c->stream);
	sim->retried = bad ? &r : NULL;
	step(sim, event);
	sim->retried = NULL;
}

void some_read(struct sim *sim, unsigned faults)
{
	if (sim->reads == 0)
		return;
	unsigned at = (unsigned)below(sim, sim->reads);
	struct read r = sim->read[at];
	unsigned queue = ((const struct dataset *)r.action.owner)->queue;

	if (queue == 0 && share_slow(sim, client_of(sim, r.action.id)->stream) && !one_in(sim, 200))
		return; /* it hangs */
	if (sim->hung[queue] && !r.cancelled)
		return;
	sim->read[at] = sim->read[--sim->reads];
	finish_read(sim, r, faults);
}

static void take(struct sim *sim, struct client *c)
{
	CHECK(sim, c->taken < c->end);
	client_check_slot(sim, c, c->taken);
	c->seen[c->taken % SLOTS_MAX] = client_slot_hash(c, c->taken);
	c->taken++;
	sim->counts.slots++;
	trace(sim, 200, id_of(sim, c), c->seen[(c->taken - 1) % SLOTS_MAX]);
}

static void release(struct sim *sim, struct client *c, uint64_t n)
{
	for (uint64_t s = c->released; s < c->released + n; s++)
		CHECK(sim, c->seen[s % SLOTS_MAX] == client_slot_hash(c, s));
	c->released += n;

	uint64_t wake_at = ring_release(&c->ring, c->released);

	if (wake_at == 0 || wake_at == c->answered)
		return;
	c->answered = wake_at;
	c->kick = !one_in(sim, 100);
	c->lost_kick |= !c->kick;
}

/* Announces a wait. Wakes a daemon that sleeps, because the release it waits for may not come while
 * this client keeps its slots. */
static void await(struct sim *sim, struct client *c)
{
	sim->counts.waits++;
	if (ring_wait_begin(&c->ring, c->taken)) {
		ring_wait_end(&c->ring);
		return;
	}
	c->asleep = true;
	if (atomic_load(&c->ring.header->wake_at) != 0)
		c->kick = true;
}

static void end_of_stream(struct sim *sim, struct client *c)
{
	CHECK(sim, published(c) == c->end);
	sim->counts.ended++;
	client_detach(sim, c);
}

/* One step of a healthy client. */
void client_turn(struct sim *sim, struct client *c)
{
	uint64_t held = c->taken - c->released;

	if (c->asleep)
		return;
	if (held > 0 && (held == c->ring.geometry.slots || one_in(sim, 2)))
		release(sim, c, 1 + below(sim, held));
	else if (published(c) > c->taken)
		take(sim, c);
	else if (c->taken == c->end)
		end_of_stream(sim, c);
	else
		await(sim, c);
}

void client_kick(struct sim *sim, struct client *c)
{
	c->kick = c->old_kick = false;
	step(sim, (struct engine_event){.type = ENGINE_KICK, .id = id_of(sim, c)});
}

void client_wake(struct client *c)
{
	c->wake = c->asleep = false;
	ring_wait_end(&c->ring);
}

/* Afterwards less than a sixteenth of a ring is free, or its feed is awake, or will be kicked. */
void look(struct sim *sim)
{
	step(sim, (struct engine_event){.type = ENGINE_LOOK, .id = UINT32_MAX});
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &sim->client[i];

		if (c->state != RUNNING || c->hostile || c->told)
			continue;

		const struct ring_geometry *g = &c->ring.geometry;
		uint64_t wake_at = atomic_load(&c->ring.header->wake_at);

		CHECK(sim,
			wake_at == 0 || c->released >= wake_at ||
				ring_client_waits(&c->ring, published(c)) ||
				c->released + g->slots - c->requested / g->rows < ring_part(g, 16));
	}
}

/* A second passes. No byte takes longer than that. */
void tick(struct sim *sim)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (sim->client[i].state != ABSENT && sim->client[i].kick &&
			sim->client[i].old_kick)
			client_kick(sim, &sim->client[i]);
	step(sim, (struct engine_event){.type = ENGINE_TICK, .id = UINT32_MAX});
	sim->counts.ticks++;
	for (unsigned i = 0; i < CLIENTS; i++) {
		struct client *c = &sim->client[i];

		c->old_kick = c->kick;
		if (c->state == ABSENT)
			continue;
		uint64_t lost = feed_counters(c->feed).lost_wakes,
			 wake_at = atomic_load(&c->ring.header->wake_at);

		CHECK(sim,
			wake_at == 0 || wake_at != c->overdue || c->state != RUNNING || c->hostile);
		c->overdue = wake_at != 0 && c->released >= wake_at && !c->kick ? wake_at : 0;
		CHECK(sim, lost == 0 || c->lost_kick || c->hostile);
		sim->counts.lost += lost - c->found;
		c->found = lost;
	}
}

void client_lie(struct sim *sim, struct client *c)
{
	uint64_t lies[] = {published(c) + 1, c->released - 1, UINT64_MAX, 0, rng_wide(&sim->rng),
		published(c)};

	c->hostile = true;
	c->asleep = false;
	atomic_store(&c->ring.control->released, lies[below(sim, 6)]);
	atomic_store(&c->ring.control->client_waits, one_in(sim, 2) ? 0 : rng_wide(&sim->rng));
	c->kick = true;
}
