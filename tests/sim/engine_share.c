/* Queues, shares of streams in the local reads in flight, and turns of users, runs and feeds. */
#include "tests/sim/engine.h"

#include "daemon/engine/turns.h"

/* ---- the next read of a client ---- */

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
		if (rig.source[c->stream][d].queue > 0)
			return false;
	return published(c) == 0 && c->requested / rows * rows >= ENGINE_FIRST_ROWS;
}

/* In an endless stream there is no padding here. */
static bool wants_more(const struct client *c)
{
	if (first_planned(c))
		return false;
	return c->end == RING_ENDLESS || (c->requested / c->ring.geometry.rows < c->end &&
						 next_position(c) < cursor_end(&c->cursor));
}

bool share_hungry(const struct client *c)
{
	return c->state == RUNNING && !c->told && atomic_load(&c->ring.header->wake_at) == 0 &&
	       wants_more(c);
}

static unsigned next_queue(const struct client *c)
{
	struct order order = cursor_order(&c->cursor);
	struct order_place p;

	CHECK(order_at(&order, next_position(c), &p));
	return rig.source[c->stream][p.dataset].queue;
}

/* ---- reads in flight ---- */

unsigned queue_of(const struct read *r)
{
	unsigned stream = rig.client[r->action.id].stream;
	const struct dataset *d = r->action.owner;

	return rig.source[stream][d - rig.catalog->stream[stream].dataset].queue;
}

unsigned queue_reads(unsigned queue)
{
	unsigned n = 0;

	for (unsigned i = 0; i < rig.reads; i++)
		n += queue_of(&rig.read[i]) == queue;
	return n;
}

unsigned share_reads(unsigned stream)
{
	unsigned n = 0;

	for (unsigned i = 0; i < rig.reads; i++)
		n += queue_of(&rig.read[i]) == 0 &&
		     rig.client[rig.read[i].action.id].stream == stream;
	return n;
}

unsigned share_most(unsigned stream)
{
	unsigned quarter = rig.depth / 4 ? rig.depth / 4 : 1, left = rig.depth, others = 0;

	for (unsigned i = 0; i < STREAMS; i++) {
		unsigned n = i == stream ? 0 : share_reads(i);

		left -= rig.slow[i] || rig.silent[i] ? n : 0;
		others += rig.slow[i] ? n : 0;
	}
	if (!rig.slow[stream])
		return left - left / 4;
	return others < quarter ? quarter - others : 0;
}

/* A stream is silent after a quarter of its share without an answer. */
void share_begun(unsigned stream)
{
	if (++rig.unanswered[stream] > share_most(stream) / 4)
		rig.silent[stream] = true;
}

void share_answered(unsigned stream)
{
	rig.unanswered[stream] = 0;
	rig.silent[stream] = false;
}

/* Waiting feeds are admitted when an eighth is free: of the queue without the reads of slow and
 * silent streams, which may hang for ever, and of the stream's share. */
bool share_free(const struct client *c)
{
	unsigned queue = rig.stores ? next_queue(c) : 0, most = share_most(c->stream), hung = 0;

	for (unsigned i = 0; i < STREAMS && queue == 0; i++)
		hung += rig.slow[i] || rig.silent[i] ? share_reads(i) : 0;
	unsigned depth = (queue ? rig.store_depth : rig.depth) - hung;

	if (rig.stores && queue_reads(queue) - hung + depth / 8 >= depth)
		return false;
	return queue > 0 || share_reads(c->stream) + most / 8 < most;
}

/* ---- turns ---- */

static uint32_t node_of(const struct client *c)
{
	return USERS + USERS * RUNS + (uint32_t)(c - rig.client);
}

/* Do both share one part? Users share the whole, runs their user's part, feeds their run's. */
static bool siblings(uint32_t a, uint32_t b)
{
	const uint32_t clients = USERS + USERS * RUNS;

	if (a < USERS || b < USERS)
		return a < USERS && b < USERS;
	if (a < clients || b < clients)
		return a < clients && b < clients && (a - USERS) / RUNS == (b - USERS) / RUNS;
	return rig.client[a - clients].run == rig.client[b - clients].run;
}

void share_close(void)
{
	bool able[NODES] = {false}, pads[NODES] = {false};

	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &rig.client[i];

		if (share_hungry(c) && share_free(c))
			able[c->user] = able[c->run] = able[node_of(c)] = true;
		/* Only padding is left: it is paid for, too, but not seen here. */
		if (c->state == RUNNING && !first_planned(c) && !wants_more(c) &&
			published(c) < c->end)
			pads[c->user] = pads[c->run] = true;
	}
	for (uint32_t a = 0; a < NODES; a++)
		for (uint32_t b = 0; b < NODES; b++)
			if (!able[a] || !able[b] || pads[a] || pads[b] || !siblings(a, b))
				rig.ahead[a][b] = 0;
}

void share_charge(const struct client *by, int64_t cost)
{
	uint32_t node[] = {by->user, by->run, node_of(by)};

	for (unsigned i = 0; i < 3; i++)
		for (uint32_t other = 0; other < NODES; other++)
			if (other != node[i] && siblings(node[i], other)) {
				rig.ahead[node[i]][other] += cost;
				rig.ahead[other][node[i]] -= cost;
			}
	share_close();
}

/* Wake-ups are paid for, too, but do not wait for a turn: there may be one for each client. */
void share_check(const struct client *by)
{
	uint32_t node[] = {by->user, by->run, node_of(by)};
	int64_t bound = 2 * (TURN_QUANTUM + TURN_ROW + WINDOW_MAX * 4) + CLIENTS * TURN_WAKE;

	for (unsigned i = 0; i < 3; i++)
		for (uint32_t other = 0; other < NODES; other++) {
			CHECK(rig.ahead[node[i]][other] <= bound);
			rig.shared += rig.ahead[node[i]][other] > 0;
		}
}
