/* Queues, shares of streams in the local reads in flight, and turns of users, runs and feeds. */
#include "tests/sim/engine_sim.h"

/* Position of the next row that is read for the client. */
static uint64_t next_position(const struct client *c)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t slots = c->requested / g->rows;

	return c->cursor.next + (slots * c->world + c->rank) * g->rows + c->requested % g->rows;
}

/* Has its feed planned all that it may until the first batch is published? */
static bool first_planned(const struct client *c)
{
	uint32_t rows = c->ring.geometry.rows;

	for (uint32_t d = 0; d < c->cursor.datasets; d++)
		if (c->stream->source[d].queue > 0)
			return false;
	return published(c) == 0 && c->requested / rows * rows >= ENGINE_FIRST_ROWS;
}

/* Does the client need more reads? In an endless stream there is no padding here. */
static bool wants_more(const struct client *c)
{
	if (first_planned(c))
		return false;
	if (c->end == RING_ENDLESS)
		return true;
	return c->requested / c->ring.geometry.rows < c->end &&
	       next_position(c) < cursor_end(&c->cursor);
}

/* The queue of the client's next read. It must want more. */
static unsigned next_queue(const struct sim *sim, const struct client *c)
{
	struct order order = cursor_order(&c->cursor);
	struct order_place p;

	if (!sim->stores)
		return 0;
	CHECK(sim, order_at(&order, next_position(c), &p));
	return c->stream->dataset[p.dataset].queue;
}

static unsigned queue_of(const struct read *r)
{
	return ((const struct dataset *)r->action.owner)->queue;
}

unsigned queue_reads(const struct sim *sim, unsigned queue)
{
	unsigned n = 0;

	for (unsigned i = 0; i < sim->reads; i++)
		n += queue_of(&sim->read[i]) == queue;
	return n;
}

/* Reads in flight that may hang for ever: those of slow and silent streams. */
static unsigned hung_reads(const struct sim *sim)
{
	unsigned n = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		n += sim->slow[i] || sim->silent[i] ? share_reads(sim, &sim->stream[i]) : 0;
	return n;
}

/* Is there certainly room in the queue? Waiting feeds are admitted when an eighth of what does not
 * hang is free. */
static bool queue_free(const struct sim *sim, unsigned queue)
{
	unsigned hung = queue ? 0 : hung_reads(sim),
		 most = (queue ? sim->store_depth : sim->depth) - hung,
		 reads = queue_reads(sim, queue) - hung;

	return !sim->stores || reads + most / 8 < most;
}

/* Is there room that the daemon knows of? A sleeping feed shows a wake_at. */
bool share_hungry(const struct client *c)
{
	return c->state == RUNNING && !c->told && atomic_load(&c->ring.header->wake_at) == 0 &&
	       wants_more(c);
}

unsigned share_reads(const struct sim *sim, const struct stream *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < sim->reads; i++)
		n += queue_of(&sim->read[i]) == 0 &&
		     sim->client[sim->read[i].action.id].stream == s;
	return n;
}

/* Reads that the stream may have in flight: a part of what slow and silent streams leave. */
unsigned share_most(const struct sim *sim, const struct stream *s)
{
	unsigned quarter = sim->depth / 4 ? sim->depth / 4 : 1, left = sim->depth, others = 0;

	for (unsigned i = 0; i < STREAMS; i++) {
		unsigned n = &sim->stream[i] == s ? 0 : share_reads(sim, &sim->stream[i]);

		left -= sim->slow[i] || sim->silent[i] ? n : 0;
		others += sim->slow[i] ? n : 0;
	}
	if (!sim->slow[s - sim->stream])
		return left - left / 4;
	return others < quarter ? quarter - others : 0;
}

/* The stream has begun a read. It is silent after a quarter of its share without an answer. */
void share_begun(struct sim *sim, const struct stream *s)
{
	ptrdiff_t i = s - sim->stream;

	if (++sim->unanswered[i] > share_most(sim, s) / 4)
		sim->silent[i] = true;
}

void share_answered(struct sim *sim, const struct stream *s)
{
	sim->unanswered[s - sim->stream] = 0;
	sim->silent[s - sim->stream] = false;
}

bool share_slow(const struct sim *sim, const struct stream *s)
{
	return sim->slow[s - sim->stream];
}

/* Is there certainly room? Waiting feeds are admitted when an eighth of the share is free. */
static bool stream_free(const struct sim *sim, const struct stream *s)
{
	unsigned most = share_most(sim, s);

	return share_reads(sim, s) + most / 8 < most;
}

/* The client wants more. Is there certainly room for its next read? */
bool share_free(const struct sim *sim, const struct client *c)
{
	unsigned queue = next_queue(sim, c);

	return queue_free(sim, queue) && (queue > 0 || stream_free(sim, c->stream));
}

static uint32_t node_of(const struct sim *sim, const struct client *c)
{
	return USERS + USERS * RUNS + id_of(sim, c);
}

/* Do both share one part? Users share the whole, runs their user's part, feeds their run's. */
static bool siblings(const struct sim *sim, uint32_t a, uint32_t b)
{
	const uint32_t clients = USERS + USERS * RUNS;

	if (a < USERS || b < USERS)
		return a < USERS && b < USERS;
	if (a < clients || b < clients)
		return a < clients && b < clients && (a - USERS) / RUNS == (b - USERS) / RUNS;
	return sim->client[a - clients].run == sim->client[b - clients].run;
}

/* Is only padding left to plan? It is paid for, too, but not seen here. */
static bool pads(const struct client *c)
{
	return c->state == RUNNING && !first_planned(c) && !wants_more(c) && published(c) < c->end;
}

/* An account begins when two nodes can go on, and ends when one of them cannot. */
void share_close(struct sim *sim)
{
	bool able[NODES] = {false}, pad[NODES] = {false};

	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &sim->client[i];

		if (c->state != ABSENT && share_hungry(c) && share_free(sim, c))
			able[c->user] = able[c->run] = able[node_of(sim, c)] = true;
		if (pads(c))
			pad[c->user] = pad[c->run] = true;
	}
	for (uint32_t a = 0; a < NODES; a++)
		for (uint32_t b = 0; b < NODES; b++)
			if (!able[a] || !able[b] || pad[a] || pad[b] || !siblings(sim, a, b))
				sim->ahead[a][b] = 0;
}

static void account(struct sim *sim, uint32_t node, int64_t cost)
{
	for (uint32_t other = 0; other < NODES; other++) {
		if (other == node || !siblings(sim, node, other))
			continue;
		sim->ahead[node][other] += cost;
		sim->ahead[other][node] -= cost;
	}
}

void share_charge(struct sim *sim, const struct client *by, int64_t cost)
{
	account(sim, by->user, cost);
	account(sim, by->run, cost);
	account(sim, node_of(sim, by), cost);
	share_close(sim);
}

/* @by has begun a read. Wake-ups are paid for, too, but do not wait for a turn: there may be one
 * for each client. */
void share_check(struct sim *sim, const struct client *by)
{
	uint32_t node[] = {by->user, by->run, node_of(sim, by)};
	int64_t bound = 2 * (TURN_QUANTUM + TURN_ROW + WINDOW_MAX * 4) + CLIENTS * TURN_WAKE;

	for (unsigned i = 0; i < 3; i++)
		for (uint32_t other = 0; other < NODES; other++) {
			CHECK(sim, sim->ahead[node[i]][other] <= bound);
			sim->counts.shared += sim->ahead[node[i]][other] > 0;
		}
}
