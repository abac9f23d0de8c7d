/*
 * In window mode each window is read once, by one node. In piece mode a node reads the pieces that
 * its windows touch, again in each epoch unless its cache keeps them.
 *
 * Which pieces a node touches is found by going through windows of its share. A piece has many, so
 * one of several is enough: the share that is looked at leaves a piece out with e^-32.
 */
#include "client/ctl/offline/cost.h"

#include "daemon/catalog/dataset_fetch.h"

#include <math.h>
#include <stdlib.h>

enum { LOOKS = 32 /* windows of a piece that are looked at */ };

/* ---- windows of each dataset ---- */

/* Adds the samples of each dataset before @position, a multiple of LIMIT_BLOCK. */
static bool count_before(const struct order *order, uint64_t position, uint64_t *count)
{
	const struct order_segment *s = order->segment[0];

	for (uint32_t i = 0; i < order->segments && order->segment[i]->start <= position; i++)
		s = order->segment[i];
	struct order_segment *at = position > s->start
					   ? order_segment_next(s, position, s->units, s->datasets)
					   : order_segment_copy(s);

	if (!at)
		return false;
	for (uint32_t d = 0; d < at->datasets; d++)
		count[d] += at->base[d];
	order_segment_free(at);
	return true;
}

/* The samples of a range: of its whole blocks, the ordinals of each dataset; others one by one. */
struct range {
	uint64_t *first, *end; /* [datasets] */
	struct order_place edge[2 * LIMIT_BLOCK];
	unsigned edges;
};

static void add_edge(struct range *r, const struct order *order, uint64_t from, uint64_t to)
{
	for (; from < to; from++)
		r->edges += order_at(order, from, &r->edge[r->edges]);
}

static bool range_set(struct range *r, const struct order *order, uint64_t from, uint64_t to)
{
	uint64_t last = to - to % LIMIT_BLOCK,
		 first = from % LIMIT_BLOCK ? from + LIMIT_BLOCK - from % LIMIT_BLOCK : from;

	if (first >= last) {
		add_edge(r, order, from, to);
		return true;
	}
	add_edge(r, order, from, first);
	add_edge(r, order, last, to);
	return count_before(order, first, r->first) && count_before(order, last, r->end);
}

/* ---- one dataset ---- */

struct costing {
	const struct dataset *dataset;
	const struct order_dataset *order;
	uint64_t seed, nodes;
	const struct range *range;
	uint32_t number;     /* of the dataset */
	uint64_t first, end; /* the ordinals of its samples */
	uint64_t windows;    /* with those at the edges */
	uint64_t piece;	     /* bytes */
	double token_bytes;  /* stored */
	bool exact;
	uint64_t *first_piece;	/* [shards + 1] */
	uint8_t *touched;	/* [pieces], bits */
	uint64_t pieces, bytes; /* that are touched */
};

static uint64_t shard_bytes(const struct dataset *d, uint64_t s)
{
	return d->sizes ? d->sizes[s] : d->identity[s].bytes;
}

/* Are tokens contiguous in an uncompressed file? Megatron's are, in nearly all shards. */
static bool is_contiguous(const struct dataset *d)
{
	return d->frame_bytes == 0 && d->format != &shard_mds && d->format != &shard_arrow;
}

/* The bytes of a token in the files. Where formats add bytes of their own, their part of them. */
static void measure_tokens(struct costing *c)
{
	const struct dataset *d = c->dataset;
	uint64_t bytes = 0;

	c->exact = is_contiguous(d);
	c->token_bytes = d->token_bytes;
	if (c->exact && d->types) {
		c->token_bytes = shard_type_bytes((enum shard_type)d->types[0]);
	} else if (!c->exact || !d->plain) {
		for (uint64_t s = 0; s < d->table.shards; s++)
			bytes += shard_bytes(d, s);
		if (d->table.total_tokens > 0)
			c->token_bytes = (double)bytes / (double)d->table.total_tokens;
		if (c->exact) /* a width, and a few bytes of headers */
			c->token_bytes = exp2(floor(log2(c->token_bytes + 0.01)));
	}
}

/* The first token's byte. Contiguous tokens end with the file. */
static uint64_t data_at(const struct costing *c, uint64_t s)
{
	const struct dataset *d = c->dataset;
	uint64_t tokens = (uint64_t)((double)d->table.tokens[s] * c->token_bytes);

	if (d->plain)
		return dataset_data_at(d, s);
	return c->exact && shard_bytes(d, s) > tokens ? shard_bytes(d, s) - tokens : 0;
}

static void touch(struct costing *c, uint64_t s, uint64_t from, uint64_t to)
{
	uint64_t first = c->first_piece[s], size = shard_bytes(c->dataset, s);

	for (uint64_t p = from / c->piece; p * c->piece < to && p * c->piece < size; p++) {
		uint8_t *bits = &c->touched[(first + p) / 8], bit = (uint8_t)(1 << (first + p) % 8);

		if (*bits & bit)
			continue;
		*bits |= bit;
		c->pieces++;
		c->bytes += size - p * c->piece < c->piece ? size - p * c->piece : c->piece;
	}
}

static void touch_window(struct costing *c, uint64_t epoch, uint64_t window)
{
	const struct table *t = &c->dataset->table;
	uint64_t s, offset;

	table_locate(t, c->order, c->seed, epoch, window, &s, &offset);
	double from = (double)offset * c->token_bytes,
	       n = (double)t->window_tokens * c->token_bytes;
	uint64_t at = data_at(c, s) + (uint64_t)from;

	touch(c, s, at, at + (uint64_t)ceil(n));
}

/* The number of windows that begin in a piece. */
static uint64_t windows_of_piece(const struct costing *c)
{
	double windows = (double)c->piece / ((double)c->dataset->table.stride * c->token_bytes);

	return windows < 1 ? 1 : (uint64_t)windows;
}

static void touch_ordinal(struct costing *c, uint64_t ordinal)
{
	uint64_t n = c->order->windows, epoch = ordinal / n;

	touch_window(c, epoch, order_window(c->order, c->seed, epoch, ordinal % n));
}

/* The samples at the edges: a node's share of them. */
static void touch_edges(struct costing *c)
{
	uint64_t seen = 0;

	for (unsigned i = 0; i < c->range->edges; i++)
		if (c->range->edge[i].dataset == c->number && seen++ % c->nodes == 0)
			touch_window(c, c->range->edge[i].epoch, c->range->edge[i].window);
}

/* Of how many samples of the range one is looked at. */
static uint64_t step_of(const struct costing *c, uint64_t samples, uint64_t pieces)
{
	uint64_t step = windows_of_piece(c) / LOOKS, enough = samples / LOOKS / (pieces + 1);

	step = step < enough ? step : enough;
	return c->nodes * (step > c->nodes ? step / c->nodes : 1);
}

/* Finds the pieces that a node touches. All nodes touch as many. */
static bool touch_pieces(struct costing *c)
{
	const struct dataset *d = c->dataset;
	uint64_t n = 0, step, end = c->end;

	c->first_piece = calloc(d->table.shards + 1, sizeof(*c->first_piece));
	if (!c->first_piece)
		return false;
	for (uint64_t s = 0; s < d->table.shards; s++) {
		c->first_piece[s] = n;
		n += (shard_bytes(d, s) + c->piece - 1) / c->piece;
	}
	c->first_piece[d->table.shards] = n;
	c->touched = calloc(n / 8 + 1, 1);
	if (!c->touched)
		return false;
	/* A second epoch touches the same pieces, if the windows do not slide. */
	if (!c->order->slide && c->nodes == 1 && end - c->first > c->order->windows)
		end = c->first + c->order->windows;
	touch_edges(c);
	step = step_of(c, end - c->first, n);
	for (uint64_t x = c->first; x < end && c->pieces < n; x += step)
		touch_ordinal(c, x);
	if (c->nodes == 1 && end > c->first)
		touch_ordinal(c, end - 1);
	return true;
}

/* Reads of an epoch that blocks cause: two share the piece at their common end. */
static double shared_pieces(const struct costing *c)
{
	double block = c->order->block, epoch = (double)c->order->windows;

	if (c->order->shuffle != ORDER_BLOCK || block >= epoch)
		return 0;
	return floor(epoch / block) - (double)c->dataset->table.shards;
}

/* ---- both modes ---- */

/* Compressed shards: a read decodes whole frames. Their number per window; 1 otherwise. */
static double frames_per_window(const struct costing *c)
{
	const struct dataset *d = c->dataset;

	return d->frame_bytes == 0 ? 1
				   : 1 + (double)d->table.window_tokens * d->token_bytes /
						     (double)d->frame_bytes;
}

static struct cost window_cost(const struct costing *c)
{
	const struct dataset *d = c->dataset;
	uint64_t windows = c->windows;
	double window = (double)d->table.window_tokens * c->token_bytes;
	double read = window;

	/* A frame in the file is as long as the same part of the tokens. */
	if (d->frame_bytes > 0)
		read = frames_per_window(c) * (double)d->frame_bytes / d->token_bytes *
		       c->token_bytes;
	return (struct cost){.gets = (uint64_t)((double)windows * frames_per_window(c)),
		.bytes = (uint64_t)((double)windows * read),
		.used = (uint64_t)((double)windows * window),
		.exact = c->exact};
}

static bool piece_cost(struct costing *c, struct cost *cost)
{
	uint64_t all = 0;

	if (!touch_pieces(c))
		return false;
	for (uint64_t s = 0; s < c->dataset->table.shards; s++)
		all += shard_bytes(c->dataset, s);
	*cost = window_cost(c);
	cost->cache = dataset_fetch_needs(c->dataset);
	cost->gets = c->pieces;
	cost->bytes = c->bytes;
	/* Of each later epoch the cache has its share, whatever is evicted. */
	double epochs = (double)c->windows / (double)c->order->windows;
	double lacks = all > 0 ? 1 - (double)cost->cache / (double)all : 0;

	if (lacks > 0) {
		double first = epochs < 1 ? epochs : 1,
		       more = (epochs - first) * lacks * (double)c->pieces +
			      epochs * fmax(shared_pieces(c), 0);

		cost->bytes += (uint64_t)(more * (double)c->piece);
		cost->gets += (uint64_t)more;
		cost->exact = cost->exact && epochs <= 1 && c->order->shuffle == ORDER_NONE;
	}
	cost->gets *= c->nodes;
	cost->bytes *= c->nodes;
	return true;
}

static bool cost_dataset(struct costing *c, struct cost cost[COST_MODES])
{
	bool fine;

	measure_tokens(c);
	cost[COST_WINDOW] = window_cost(c);
	fine = piece_cost(c, &cost[COST_PIECE]);
	free(c->first_piece);
	free(c->touched);
	return fine;
}

bool cost_compute(const struct ctl_history *h, const struct dataset *const *map,
	const struct cost_query *q, struct cost (*cost)[COST_MODES])
{
	const struct cursor *cursor = &h->cursor;
	struct range *r = calloc(1, sizeof(*r));
	bool fine = r && (r->first = calloc(2 * cursor->datasets, sizeof(*r->first))) != NULL;

	if (fine) {
		r->end = r->first + cursor->datasets;
		fine = range_set(r, &h->order, q->from, q->to);
	}
	for (uint32_t d = 0; fine && d < cursor->datasets; d++) {
		struct costing c = {.dataset = map[d],
			.order = &cursor->order[d],
			.seed = cursor->seed,
			.nodes = q->nodes,
			.range = r,
			.number = d,
			.first = r->first[d],
			.end = r->end[d],
			.windows = r->end[d] - r->first[d],
			.piece = map[d] ? map[d]->config->piece : 0};

		for (unsigned i = 0; i < r->edges; i++)
			c.windows += r->edge[i].dataset == d;
		cost[d][COST_WINDOW] = cost[d][COST_PIECE] = (struct cost){.exact = true};
		if (map[d] && c.windows > 0)
			fine = cost_dataset(&c, cost[d]);
		if (map[d] && map[d]->objects)
			cost[d][map[d]->piece > 0 ? COST_PIECE : COST_WINDOW].chosen = true;
	}
	if (r)
		free(r->first);
	free(r);
	return fine;
}
