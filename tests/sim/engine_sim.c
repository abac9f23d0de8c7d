/*
 * The engine alone, in a world where everything happens at the wrong moment.
 *
 * Around one engine there are a few streams (tables without files), a disk, stores and clients.
 * Disk and stores finish reads in any order, and sometimes never. Clients take, hold, release,
 * stall, crash, write wrong counters and return at other cursors with other ranks. Bytes between
 * client and daemon are delayed. One random event happens at a time; then these are checked:
 *
 *   - a slot that the client may read is never written, and has the bytes of the order
 *   - a client that waits for a published slot has a byte on its way to it, and so has a daemon
 *     that waits for a release
 *   - if two users, two runs of one user or two feeds of one run can go on, neither gets more than
 *     two turns ahead, in bytes
 *   - a stream keeps within its share of the reads in flight, and uses it; slow streams keep within
 *     theirs together
 *   - stores that do not answer delay neither local reads, nor other stores, nor the end of a feed
 *   - a read is tried at most three times, and a failed stream reports that once to each of its
 *     feeds only
 *   - a stream ends with the right batch on every rank
 *   - memory is not touched after GONE: it is made inaccessible
 *
 * The events depend only on the seed.
 */
#include "tests/sim/engine_sim.h"

#include "tests/sim/engine_history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

__attribute__((noreturn)) void sim_broken(const struct sim *sim, const char *what, int line)
{
	fflush(stdout);
	fprintf(stderr, "sim: seed %" PRIu64 ", event %" PRIu64 ": line %d: false: %s\n", sim->seed,
		sim->counts.events, line, what);
	abort();
}

/* ---- invariants between events ---- */

/* A side that waits for progress which happened, or could happen, has a byte on its way, unless the
 * simulator dropped it. */
static void check_waits(struct sim *sim, const struct client *c)
{
	uint64_t wake_at = atomic_load(&c->ring.header->wake_at);

	CHECK(sim, !c->asleep || published(c) <= c->taken || c->wake);
	if (wake_at == 0 || c->lost_kick || c->kick)
		return;
	CHECK(sim, c->released < wake_at);
	for (unsigned i = 0; i < c->ring.geometry.slots * c->ring.geometry.rows; i++)
		if (c->reading[i])
			return;
	CHECK(sim, !c->asleep || c->wake); /* otherwise both would sleep forever */
}

static void check_client(struct sim *sim, const struct client *c)
{
	const struct ring_geometry *g = &c->ring.geometry;

	CHECK(sim, published(c) <= c->end);
	CHECK(sim, c->hostile || published(c) - c->released <= g->slots);
	CHECK(sim, c->state != FAILED || c->told);
	if (c->state == RUNNING && !c->hostile)
		check_waits(sim, c);
}

static void check_world(struct sim *sim)
{
	for (unsigned i = 0; i <= STORES; i++)
		CHECK(sim, queue_reads(sim, i) <= (i ? sim->store_depth : sim->depth));
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &sim->client[i];

		if (c->state == ABSENT)
			continue;
		check_client(sim, c);
		/* Holds even if the storage of other streams does not answer. */
		CHECK(sim, c->hostile || sim->out.more || !share_hungry(c) || !share_free(sim, c) ||
				   (!sim->stores && sim->reads == sim->depth));
	}
}

/* ---- events ---- */

static void client_event(struct sim *sim, struct client *c)
{
	if (c->state == ABSENT) {
		if (one_in(sim, 20))
			client_attach(sim, c);
	} else if (c->state == LEAVING) {
		return;
	} else if (one_in(sim, 1500) || c->told) {
		sim->counts.crashes += !c->told;
		client_detach(sim, c);
	} else if (c->kick && one_in(sim, 2)) {
		client_kick(sim, c);
	} else if (c->wake && one_in(sim, 2)) {
		client_wake(c);
	} else if (c->hostile) {
		return;
	} else if (one_in(sim, 4000)) {
		client_lie(sim, c);
	} else if (one_in(sim, c->stalled ? 60 : 300)) {
		c->stalled = !c->stalled;
	} else if (!c->stalled && c->state == RUNNING) {
		client_turn(sim, c);
	}
}

static void turn_slow(struct sim *sim, uint32_t stream, bool slow)
{
	if (sim->slow[stream] != slow)
		share_answered(sim, &sim->stream[stream]);
	sim->slow[stream] = slow;
	sim->counts.slow += slow && share_reads(sim, &sim->stream[stream]) > sim->depth / 4;
	step(sim, (struct engine_event){.type = ENGINE_SLOW, .id = stream, .slow = slow});
}

static void event(struct sim *sim)
{
	uint32_t stream = (uint32_t)below(sim, STREAMS);
	unsigned store = sim->stores ? 1 + (unsigned)below(sim, STORES) : 0;

	if (store && one_in(sim, sim->hung[store] ? 300 : 1500)) {
		sim->hung[store] = !sim->hung[store];
		sim->counts.hung += sim->hung[store] && queue_reads(sim, store) > 0;
	}

	if (one_in(sim, sim->slow[stream] ? 100 : 400))
		turn_slow(sim, stream, !sim->slow[stream]);
	if (one_in(sim, sim->storm ? 100 : 4000))
		sim->storm = !sim->storm;
	if (one_in(sim, 120))
		tick(sim);
	else if (one_in(sim, 60))
		look(sim);
	else if (one_in(sim, 3))
		some_read(sim, sim->storm ? 4 : 200);
	else
		client_event(sim, &sim->client[below(sim, CLIENTS)]);
	sim->counts.events++;
	share_close(sim);
	check_world(sim);
}

/* ---- the end: all clients finish ---- */

/* Stores that hang keep nobody. */
static void all_leave(struct sim *sim)
{
	for (unsigned i = 1; i <= STORES; i++)
		sim->hung[i] = true;
	for (uint32_t i = 0; i < STREAMS; i++)
		turn_slow(sim, i, false);
	for (unsigned i = 0; i < CLIENTS; i++)
		if (sim->client[i].state == RUNNING || sim->client[i].state == FAILED)
			client_detach(sim, &sim->client[i]);
	while (sim->reads > 0)
		some_read(sim, 10);
	for (unsigned i = 0; i < CLIENTS; i++)
		CHECK(sim, sim->client[i].state == ABSENT);
}

static bool is_idle(const struct client *c)
{
	return c->state != RUNNING || c->hostile || c->told || (c->asleep && !c->kick && !c->wake);
}

/* Without faults every healthy client makes progress: ten more slots, or its end. */
static void all_make_progress(struct sim *sim)
{
	uint64_t goal[CLIENTS];
	unsigned left = CLIENTS;

	for (uint32_t i = 0; i < STREAMS; i++)
		turn_slow(sim, i, false);
	for (unsigned i = 1; i <= STORES; i++)
		sim->hung[i] = false;
	for (unsigned i = 0; i < CLIENTS; i++)
		goal[i] = sim->client[i].taken + 10;
	for (uint64_t turns = 0; left > 0; turns++) {
		CHECK(sim, turns < 100000);
		left = 0;
		some_read(sim, 0);
		if (turns % 500 == 499)
			tick(sim);
		for (unsigned i = 0; i < CLIENTS; i++) {
			struct client *c = &sim->client[i];

			if (c->state != RUNNING || c->hostile || c->told || c->taken >= goal[i])
				continue;
			left++;
			if (c->kick)
				client_kick(sim, c);
			else if (c->wake)
				client_wake(c);
			else if (!is_idle(c))
				client_turn(sim, c);
			check_world(sim);
		}
	}
}

static void sim_free(struct sim *sim)
{
	engine_free(sim->engine);
	for (unsigned i = 0; i < STREAMS; i++)
		cursor_free(&sim->stream[i].begin);
	for (unsigned i = 0; i < GRAVES; i++)
		if (sim->grave[i].at)
			munmap(sim->grave[i].at, sim->grave[i].bytes);
}

/* ---- a history ---- */

/* A run without one of these events would show nothing. */
static bool is_covered(const struct sim *sim)
{
	const struct engine_counts *n = &sim->counts;

	return n->slots > 1000 && n->attached > 20 && n->crashes > 5 && n->waits > 100 &&
	       (n->shared > 100 || (sim->stores && sim->depth < 8)) &&
	       (n->slow > 10 || sim->stores || sim->depth < 8) && n->faults > 10 &&
	       n->retries > 10 && n->failures > 0 && n->hostile > 0 &&
	       (n->away < 10000 || (n->hung > 3 && n->cancelled > 10));
}

uint64_t engine_history(uint64_t seed, uint64_t events)
{
	struct sim *sim = calloc(1, sizeof(*sim));

	if (!sim)
		abort();
	sim->seed = seed;
	sim->rng.state = order_mix64(seed) | 1;
	sim->depth = 1 + (unsigned)below(sim, DEPTH_MAX);
	sim->engine = engine_new(sim->depth);
	sim->stores = !one_in(sim, 3);
	sim->store_depth = 1 + (unsigned)below(sim, DEPTH_MAX);
	engine_store_depth(sim->engine, sim->store_depth);
	for (unsigned i = 0; i < STREAMS; i++)
		stream_make(sim, &sim->stream[i]);
	/* Rare events may need a longer history. */
	while (sim->counts.events < events ||
		(events >= 100000 && sim->counts.events < 8 * events && !is_covered(sim)))
		event(sim);
	CHECK(sim, events < 100000 || is_covered(sim));
	all_make_progress(sim);
	all_leave(sim);

	uint64_t trace = sim->trace;

	sim_free(sim);
	free(sim);
	return trace;
}
