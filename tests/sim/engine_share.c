/* Shares of streams in the reads in flight, and turns of feeds. */
#include "tests/sim/engine_alone.h"

#include "daemon/engine/feed.h"

/* ---- the next read of a client ---- */

static uint64_t next_position(const struct client *c)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t slots = c->requested / g->rows;

	return c->cursor.next + (slots * c->world + c->rank) * g->rows + c->requested % g->rows;
}

/* In an endless stream there is no padding here. */
static bool wants_more(const struct client *c)
{
	return c->end == RING_ENDLESS || (c->requested / c->ring.geometry.rows < c->end &&
						 next_position(c) < cursor_end(&c->cursor));
}

bool share_hungry(const struct client *c)
{
	return c->state == RUNNING && !c->told && atomic_load(&c->ring.header->wake_at) == 0 &&
	       wants_more(c);
}

static unsigned next_place(const struct client *c)
{
	struct order order = cursor_order(&c->cursor);
	struct order_place p;

	CHECK(order_at(&order, next_position(c), &p));
	return rig.source[c->stream][p.dataset].place;
}

/* ---- reads in flight ---- */

unsigned place_of(const struct read *r)
{
	unsigned stream = rig.client[r->action.id].stream;
	const struct dataset *d = r->action.owner;

	return rig.source[stream][d - rig.catalog->stream[stream].dataset].place;
}

static unsigned share_reads(unsigned place, unsigned stream)
{
	unsigned n = 0;

	for (unsigned i = 0; i < rig.reads; i++)
		n += place_of(&rig.read[i]) == place &&
		     rig.client[rig.read[i].action.id].stream == stream;
	return n;
}

/* One, and half of what is free of the rest. */
static unsigned share_most(unsigned place, unsigned stream)
{
	unsigned own = share_reads(place, stream), free = place ? rig.store_depth : rig.depth;

	for (unsigned i = 0; i < STREAMS; i++) {
		unsigned n = i == stream ? 0 : share_reads(place, i);

		free -= n > 0 ? n - 1 : 0;
	}
	CHECK(own == 0 || own - 1 <= free);
	return 1 + (free + 1) / 2;
}

void share_begun(unsigned place, unsigned stream)
{
	CHECK(share_reads(place, stream) < share_most(place, stream));
}

/* Feeds that wait for the share are woken after a read of it, if an eighth of it is free, or if the
 * place is a store. */
void share_ended(unsigned place, unsigned stream)
{
	unsigned most = share_most(place, stream);

	if (share_reads(place, stream) + (place ? 0 : most / 8) < most)
		rig.full[place][stream] = false;
}

void share_stepped(void)
{
	for (unsigned place = 0; place <= STORES; place++)
		for (unsigned i = 0; i < STREAMS; i++)
			if (share_reads(place, i) >= share_most(place, i))
				rig.full[place][i] = true; /* since then, feeds may wait */
}

bool share_free(const struct client *c)
{
	return !rig.full[rig.stores ? next_place(c) : 0][c->stream];
}

/* ---- turns ---- */

static uint32_t peers(const struct client *c)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < CLIENTS; i++)
		n += rig.client[i].state != ABSENT && rig.client[i].user == c->user;
	return n;
}

void share_close(void)
{
	bool able[CLIENTS];

	for (unsigned i = 0; i < CLIENTS; i++)
		able[i] = share_hungry(&rig.client[i]) && share_free(&rig.client[i]);
	for (uint32_t a = 0; a < CLIENTS; a++)
		for (uint32_t b = 0; b < CLIENTS; b++)
			if (!able[a] || !able[b])
				rig.ahead[a][b] = 0;
}

/* Feeds of a user with n of them get an n-th each. */
void share_charge(const struct client *by, int64_t cost)
{
	uint32_t a = (uint32_t)(by - rig.client);

	for (uint32_t b = 0; b < CLIENTS; b++)
		if (a != b) {
			rig.ahead[a][b] += cost * peers(by);
			rig.ahead[b][a] -= cost * peers(by);
		}
	share_close();
}

/* Wake-ups are paid for, too, but do not wait for a turn: there may be one for each client. */
void share_check(const struct client *by)
{
	uint32_t a = (uint32_t)(by - rig.client);
	int64_t bound = CLIENTS * (2 * (FEED_QUANTUM + FEED_ROW_COST + WINDOW_MAX * 4) +
					  CLIENTS * FEED_WAKE_COST);

	for (uint32_t b = 0; b < CLIENTS; b++) {
		CHECK(rig.ahead[a][b] <= bound);
		rig.shared += rig.ahead[a][b] > 0;
	}
}
