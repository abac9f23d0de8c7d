/*
 * The simulator: the engine alone in a world that does everything at the wrong moment.
 *
 *   sim [--seed S] [--events N]
 *
 * Around one engine there are a few streams (pure tables, no files), a disk that finishes reads in
 * any order and sometimes not at all, and clients that take, hold, release, stall, crash, lie and
 * come back at other cursors with other ranks. A byte between client and daemon takes its time. One
 * random event happens at a time; after each the world is checked:
 *
 *   - a slot the client may look at is never written, and holds what the order says, byte for byte
 *   - a client that waits for something that is there has a byte on its way, and so has the daemon
 *   - of two users, of two runs of one user, and of two feeds of one run that both could go on,
 * none gets more than two turns ahead of the other, counted in bytes
 *   - a stream keeps to its share of the reads in flight, slow ones together to theirs, and uses it
 *   - a read is tried three times and no more, a failed stream says so once to each of its feeds,
 * to no other
 *   - a stream ends at the very batch where it has to, for every rank
 *   - memory is left alone after GONE: it is made inaccessible
 *
 * What happens depends on the seed alone: the same seed gives the same trace, whose hash is
 * printed.
 */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

__attribute__((noreturn)) void sim_broken(const struct sim *sim, const char *what, int line)
{
	fflush(stdout);
	fprintf(stderr, "sim: seed %" PRIu64 ", event %" PRIu64 ": line %d: not true: %s\n",
		sim->seed, sim->counts.events, line, what);
	abort();
}

/* ---- invariants between events ---- */

/* Who waits for what is there, or could be, has a byte on its way; unless the sim itself dropped
 * it. */
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
	CHECK(sim, !c->asleep || c->wake); /* or both would sleep for ever */
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
	CHECK(sim, sim->reads <= sim->depth);
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &sim->client[i];

		if (c->state == ABSENT)
			continue;
		check_client(sim, c);
		/* Whatever the others' storage does. */
		CHECK(sim, c->hostile || sim->out.more || sim->reads == sim->depth ||
				   !share_hungry(c) || !share_free(sim, c->stream));
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
	sim->slow[stream] = slow;
	sim->counts.slow += slow && share_reads(sim, &sim->stream[stream]) > sim->depth / 4;
	step(sim, (struct engine_event){.type = ENGINE_SLOW, .id = stream, .slow = slow});
}

static void event(struct sim *sim)
{
	uint32_t stream = (uint32_t)below(sim, STREAMS);

	if (one_in(sim, sim->slow[stream] ? 100 : 400))
		turn_slow(sim, stream, !sim->slow[stream]);
	if (one_in(sim, sim->storm ? 100 : 4000))
		sim->storm = !sim->storm;
	if (one_in(sim, 120))
		tick(sim);
	else if (one_in(sim, 3))
		some_read(sim, sim->storm ? 4 : 200);
	else
		client_event(sim, &sim->client[below(sim, CLIENTS)]);
	sim->counts.events++;
	share_close(sim);
	check_world(sim);
}

/* ---- the end: everything that can finish does ---- */

static void leave_everybody(struct sim *sim)
{
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

/* Without faults every healthy client gets on: ten more slots, or its end. */
static void everybody_gets_on(struct sim *sim)
{
	uint64_t goal[CLIENTS];
	unsigned left = CLIENTS;

	for (uint32_t i = 0; i < STREAMS; i++)
		turn_slow(sim, i, false);
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

/* ---- the program ---- */

static void report(const struct sim *sim)
{
	const struct counts *n = &sim->counts;

	printf("events %" PRIu64 "  attached %" PRIu64 "  crashes %" PRIu64 "  ended %" PRIu64 "\n",
		n->events, n->attached, n->crashes, n->ended);
	printf("slots %" PRIu64 "  rows %" PRIu64 "  padding rows %" PRIu64 "  waits %" PRIu64
	       "  ticks %" PRIu64 "\n",
		n->slots, n->rows, n->padding, n->waits, n->ticks);
	printf("faults %" PRIu64 "  retries %" PRIu64 "  feeds failed %" PRIu64 "  hostile %" PRIu64
	       "  lost bytes found %" PRIu64 "  documents %" PRIu64 "  labels %" PRIu64 "\n",
		n->faults, n->retries, n->failures, n->hostile, n->lost, n->documents, n->labels);
	printf("trace %016" PRIx64 "\n", sim->trace);
}

/* A run in which one of these never happened would have shown nothing. */
static void check_coverage(struct sim *sim)
{
	const struct counts *n = &sim->counts;

	if (n->events < 100000)
		return;
	CHECK(sim, n->slots > 1000 && n->attached > 20 && n->crashes > 5 && n->waits > 100);
	CHECK(sim, n->shared > 100 && (n->slow > 10 || sim->depth < 8));
	CHECK(sim, n->faults > 10 && n->retries > 10 && n->failures > 0 && n->hostile > 0);
}

static int usage(void)
{
	fprintf(stderr, "usage: sim [--seed S] [--events N]\n");
	return 2;
}

static bool read_arguments(int argc, char **argv, uint64_t *seed, uint64_t *events)
{
	for (int i = 1; i < argc; i += 2) {
		char *end;
		uint64_t *to = strcmp(argv[i], "--seed") == 0	  ? seed
			       : strcmp(argv[i], "--events") == 0 ? events
								  : NULL;

		if (!to || i + 1 == argc)
			return false;
		*to = strtoull(argv[i + 1], &end, 10);
		if (*end || !*argv[i + 1])
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t seed = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 +
			(uint64_t)getpid(),
		 events = 100000;

	if (!read_arguments(argc, argv, &seed, &events))
		return usage();
	printf("seed %" PRIu64 "\n", seed);
	fflush(stdout);

	struct sim *sim = calloc(1, sizeof(*sim));

	if (!sim)
		return 1;
	sim->seed = seed;
	sim->rng.state = order_mix64(seed) | 1;
	sim->depth = 1 + (unsigned)below(sim, DEPTH_MAX);
	sim->engine = engine_new(sim->depth);
	for (unsigned i = 0; i < STREAMS; i++)
		stream_make(sim, &sim->stream[i]);
	while (sim->counts.events < events)
		event(sim);
	everybody_gets_on(sim);
	leave_everybody(sim);
	report(sim);
	check_coverage(sim);
	sim_free(sim);
	free(sim);
	return 0;
}
