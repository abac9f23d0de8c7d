/* Feeds of a small stream, and an engine to step. Include it after cmocka.h. */
#ifndef TESTS_FEEDS_H
#define TESTS_FEEDS_H

#include "daemon/engine/engine.h"

enum { WINDOW = 5, DEPTH = 64, MANY = 600 };

/* One dataset of a hundred windows in one shard. A window has 4 tokens and one extra. */
static uint64_t shard_tokens[] = {401};
static uint64_t first_window[2];
static struct table table = {.window_tokens = WINDOW,
	.stride = 4,
	.shards = 1,
	.tokens = shard_tokens,
	.first_window = first_window};
static const struct feed_source source = {.table = &table, .owner = &table};

static inline struct cursor begin(uint64_t samples, uint64_t next)
{
	struct cursor id = {.stream = "s",
			      .seed = 1,
			      .seq_len = 4,
			      .extra = 1,
			      .stride = 4,
			      .samples = samples},
		      c;
	struct cursor_source sources[] = {{"d", 1, 100, 1, 64, 64, ORDER_NONE, false, 0, 0, 0}};
	struct fault fault;

	table_number(&table);
	assert_int_equal(table.windows, 100);
	assert_true(cursor_begin(&c, &id, sources, 1, NULL, 0, &fault));
	assert_true(cursor_seek(&c, next, &fault));
	return c;
}

/* A feed and its memory; the client's words are in its ring. */
struct session {
	struct feed *feed;
	struct ring ring;
	void *meta, *data;
};

struct shape {
	uint32_t id, stream, slots, rows;
	uint64_t rank, world, samples, next;
	unsigned annotations;
	unsigned queue;
};

static inline struct session session_make(const struct shape *shape)
{
	struct session s = {0};
	struct ring_geometry g;
	struct cursor cursor = begin(shape->samples, shape->next);
	struct feed_source from = source;
	struct fault fault;

	assert_true(ring_geometry(
		&g, shape->slots, shape->rows, WINDOW, 4, shape->annotations, &fault));
	s.meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	s.data = aligned_alloc(RING_PAGE, g.data_bytes);
	assert_true(s.meta && s.data);
	memset(s.meta, 0, g.meta_bytes);
	memset(s.data, 0, g.data_bytes);
	from.queue = shape->queue;
	ring_format(&s.ring, &g, s.meta, s.data);
	s.feed = feed_new(&cursor, &(struct feed_options){
					   .id = shape->id,
					   .stream = shape->stream,
					   .rank = shape->rank,
					   .world = shape->world ? shape->world : 1,
					   .ring = s.ring,
					   .source = &from,
				   });
	assert_non_null(s.feed);
	cursor_free(&cursor);
	return s;
}

static inline void session_free(struct session *s)
{
	feed_free(s->feed);
	free(s->meta);
	free(s->data);
}

static inline uint64_t published(const struct session *s)
{
	return ring_published(&s->ring);
}

/* ---- stepping ---- */

struct rig {
	struct engine *engine;
	struct engine_actions out;
	uint64_t reading[LIMIT_READS];		     /* tags of the reads in flight, oldest first */
	struct annotations annotations[LIMIT_READS]; /* of these reads */
	unsigned reads;
};

static inline struct rig *rig_make(unsigned depth)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->engine = engine_new(depth);
	assert_non_null(r->engine);
	return r;
}

static inline void rig_free(struct rig *r)
{
	engine_free(r->engine);
	free(r);
}

static inline unsigned step(struct rig *r, struct engine_event event)
{
	r->out.count = 0;
	engine_step(r->engine, &event, &r->out);
	for (unsigned i = 0; i < r->out.count; i++)
		if (r->out.action[i].type == ENGINE_READ) {
			assert_true(r->reads < LIMIT_READS);
			r->annotations[r->reads] = r->out.action[i].annotations;
			r->reading[r->reads++] = r->out.action[i].tag;
		}
	return r->out.count;
}

static inline unsigned attach(struct rig *r, const struct session *s, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_ATTACH, .id = id, .feed = s->feed});
}

static inline unsigned kick(struct rig *r, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_KICK, .id = id});
}

static inline unsigned detach(struct rig *r, uint32_t id)
{
	return step(r, (struct engine_event){.type = ENGINE_DETACH, .id = id});
}

static inline unsigned tick(struct rig *r)
{
	return step(r, (struct engine_event){.type = ENGINE_TICK, .id = UINT32_MAX});
}

static inline unsigned look(struct rig *r)
{
	return step(r, (struct engine_event){.type = ENGINE_LOOK, .id = UINT32_MAX});
}

static inline unsigned done(struct rig *r, uint64_t tag, int fault, bool retryable)
{
	unsigned at = 0;

	while (at < r->reads && r->reading[at] != tag)
		at++;
	assert_true(at < r->reads);
	memmove(&r->reading[at], &r->reading[at + 1], (--r->reads - at) * sizeof(tag));
	memmove(&r->annotations[at], &r->annotations[at + 1],
		(r->reads - at) * sizeof(r->annotations[at]));
	return step(r, (struct engine_event){.type = ENGINE_DONE,
			       .id = UINT32_MAX,
			       .tag = tag,
			       .fault = fault,
			       .retryable = retryable});
}

static inline unsigned count(const struct rig *r, int type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->out.count; i++)
		n += (int)r->out.action[i].type == type;
	return n;
}

static inline void pump(struct rig *r)
{
	step(r, (struct engine_event){.type = ENGINE_PUMP, .id = UINT32_MAX});
}

/* Ends all reads, oldest first, and all that follow. */
static inline void read_all(struct rig *r)
{
	while (r->out.more || r->reads > 0)
		if (r->out.more)
			pump(r);
		else
			done(r, r->reading[0], 0, false);
}

static inline void leave(struct rig *r, struct session *s, uint32_t id)
{
	read_all(r);
	assert_int_equal(detach(r, id), 1);
	assert_int_equal(r->out.action[0].type, ENGINE_GONE);
	assert_ptr_equal(r->out.action[0].feed, s->feed);
	session_free(s);
}

#endif
