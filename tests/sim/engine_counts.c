/*
 * How many reads the streams of a place hold while the storage of some hangs, and how many the
 * feeds of one stream. A read that blocks has a thread of its own, so threads are counted with it.
 */
#include "tests/sim/engine_alone.h"

#include <sys/mman.h>

enum { STREAMS_MOST = 64, ROWS = 128, ROUNDS = 200 };

static struct counted {
	struct feed *feed;
	void *meta, *data;
	struct ring ring;
	unsigned reads;
	uint64_t begun;
	struct engine_action read[ROWS];
} counted[STREAMS_MOST];

static struct engine *engine;

static void step(struct engine_event event)
{
	static struct engine_actions out;

	do {
		engine_step(engine, &event, &out);
		for (unsigned i = 0; i < out.count; i++) {
			const struct engine_action *a = &out.action[i];
			struct counted *c = &counted[a->id];

			c->begun += a->type == ENGINE_READ;
			if (a->type == ENGINE_READ)
				c->read[c->reads++] = *a;
			else
				CHECK(a->type == ENGINE_CANCEL || a->type == ENGINE_GONE);
		}
		event = (struct engine_event){.type = ENGINE_PUMP};
	} while (out.more);
}

static void attach(uint32_t id, uint32_t stream, unsigned place, unsigned rows)
{
	struct counted *c = &counted[id];
	const struct stream *s = &rig.catalog->stream[0];
	struct feed_source source[DATASETS];
	struct ring_geometry g;
	struct fault fault;

	for (uint32_t d = 0; d < s->begin.datasets; d++) {
		source[d] = rig.source[0][d];
		source[d].place = place;
	}
	CHECK(ring_geometry(
		&g, 2, rows, s->begin.seq_len + s->begin.extra, s->token_bytes, 0, &fault));
	*c = (struct counted){0};
	c->meta = engine_map(g.meta_bytes);
	c->data = engine_map(g.data_bytes);
	ring_format(&c->ring, &g, c->meta, c->data);
	c->feed = feed_new(&s->begin,
		&(struct feed_options){
			.id = id, .stream = stream, .world = 1, .ring = c->ring, .source = source});
	CHECK(c->feed);
	step((struct engine_event){.type = ENGINE_ATTACH, .id = id, .feed = c->feed});
}

/* Ends its first read. */
static void one_ends(struct counted *c)
{
	struct engine_event done = {.type = ENGINE_DONE, .tag = c->read[0].tag};

	memmove(c->read, c->read + 1, --c->reads * sizeof(c->read[0]));
	step(done);
}

static void leave(uint32_t id)
{
	struct counted *c = &counted[id];

	step((struct engine_event){.type = ENGINE_DETACH, .id = id});
	while (c->reads > 0)
		one_ends(c);
	feed_free(c->feed);
	CHECK(munmap(c->meta, c->ring.geometry.meta_bytes) == 0);
	CHECK(munmap(c->data, c->ring.geometry.data_bytes) == 0);
}

/* Streams that want more reads than they may begin. */
static void count(unsigned place, unsigned depth, unsigned hung, unsigned healthy, unsigned each)
{
	unsigned reads = 0;

	engine = engine_new(place ? 1 : depth, depth);
	for (uint32_t id = 0; id < hung; id++)
		attach(id, id, place, ROWS);
	for (uint32_t id = hung; id < hung + healthy; id++) {
		attach(id, id, place, ROWS);
		CHECK(counted[id].reads >= 1 && counted[id].reads <= each);
		CHECK(counted[id].reads == each || healthy > 1);
		for (unsigned i = 0; i < ROUNDS / 10 && healthy == 1; i++) {
			one_ends(&counted[id]);
			CHECK(counted[id].reads + each / 8 + 1 > each); /* an eighth is free */
		}
	}
	for (uint32_t id = 0; id < hung + healthy; id++)
		reads += counted[id].reads;
	CHECK(reads <= depth + hung + healthy);
	for (uint32_t id = 0; id < hung + healthy; id++)
		leave(id);
	engine_free(engine);
}

/* Feeds of one stream get equally many reads, although each client releases and asks for more as
 * soon as a read of it has ended. */
static void count_feeds(unsigned feeds, unsigned depth, unsigned rows)
{
	uint64_t least = UINT64_MAX, most = 0;

	engine = engine_new(depth, 1);
	for (uint32_t id = 0; id < feeds; id++)
		attach(id, 0, 0, rows);
	for (unsigned i = 0; i < feeds * ROUNDS; i++) {
		struct counted *c = &counted[i % feeds];

		if (c->reads == 0)
			continue;
		one_ends(c);
		if (ring_release(&c->ring, ring_published(&c->ring)) != 0)
			step((struct engine_event){.type = ENGINE_KICK, .id = i % feeds});
	}
	for (uint32_t id = 0; id < feeds; id++) {
		least = counted[id].begun < least ? counted[id].begun : least;
		most = counted[id].begun > most ? counted[id].begun : most;
		leave(id);
	}
	CHECK(least > 0 && most <= least + least / 4);
	engine_free(engine);
}

void engine_counts(void)
{
	static const struct {
		unsigned depth, hung, healthy, each;
	} rows[] = {
		{128, 0, 1, 65}, /* alone: its own, and half of the rest */
		{128, 1, 1, 33},
		{128, 3, 1, 9},
		{128, 7, 1, 2},
		{128, 20, 1, 1},
		{1, 0, 1, 2}, /* one read to share */
		{1, 3, 1, 1},
		{128, 0, 64, 65},
		{128, 20, 44, 1},
	};

	for (unsigned place = 0; place < 2; place++)
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			count(place, rows[i].depth, rows[i].hung, rows[i].healthy, rows[i].each);
	count_feeds(64, 64, 1); /* more feeds than reads */
	count_feeds(2, 128, ROWS);
}
