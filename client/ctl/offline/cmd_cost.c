/*
 * tokctl cost: what the reads of a stream cost in an object store, in GETs, bytes and dollars. It
 * is computed from the order and the tables of its datasets; nothing is read.
 *
 * In window mode each window is read once, by one node. In piece mode a node reads the pieces that
 * its windows touch: once if its cache holds the dataset, otherwise again in each epoch. These are
 * as many as the node has windows, until they are all; without shuffle no more than the part of the
 * epoch, by blocks no more than the groups that have begun.
 */
#include "client/ctl/offline/offline.h"

#include <math.h>

enum mode { WINDOW, PIECE, MODES };
enum {
	CACHE_GROUPS = 3,  /* of block shuffle that are read at a time */
	CACHE_PIECES = 64, /* the same without shuffle */
	SURE = 32,	   /* if a node reads so many windows a piece, it reads each piece */
};

/* Sums over all nodes, except for the cache. */
struct cost {
	double gets, bytes;
	double used;	/* bytes of the windows */
	uint64_t cache; /* bytes on each node */
	bool exact;	/* otherwise an estimate */
	bool chosen;	/* the config reads the dataset so */
};

/* A dataset's part of the range. */
struct reads {
	const struct dataset *dataset;
	const struct order_dataset *order;
	double windows, epochs, nodes;
	double bytes, pieces; /* of the shards */
	double token_bytes;   /* stored */
	bool exact;
};

/* The samples of dataset @d in [from, to). */
static double samples(const struct order *order, uint32_t d, uint64_t from, uint64_t to)
{
	double sum = 0;

	for (uint32_t i = 0; i < order->segments; i++) {
		const struct order_segment *s = order->segment[i];
		uint64_t first = s->start > from ? s->start : from,
			 next = i + 1 < order->segments ? order->segment[i + 1]->start : to,
			 last = next < to ? next : to;

		if (first < last)
			sum += (double)(last - first) * ctl_fraction(s, d);
	}
	return round(sum);
}

/* Sums up the shards. Where formats add bytes of their own, a token has its part of them. */
static void measure(struct reads *r)
{
	const struct dataset *d = r->dataset;

	/* Are tokens contiguous in an uncompressed file? Megatron's are, in nearly all shards. */
	r->exact = d->frame_bytes == 0 && d->format != &shard_mds && d->format != &shard_arrow;
	for (uint64_t s = 0; s < d->table.shards; s++) {
		r->bytes += (double)d->entry[s].bytes;
		r->pieces += ceil((double)d->entry[s].bytes / d->config->piece);
	}
	r->token_bytes = r->exact ? shard_type_bytes((enum shard_type)d->entry[0].type)
				  : r->bytes / (double)d->table.total_tokens;
}

static struct cost window_cost(const struct reads *r)
{
	const struct dataset *d = r->dataset;
	double window = (double)d->table.window_tokens * r->token_bytes, read = window, frames = 1;

	/* A read decodes whole frames. One in the file is as long as the same part of the tokens.
	 */
	if (d->frame_bytes > 0) {
		frames += (double)d->table.window_tokens * d->token_bytes / (double)d->frame_bytes;
		read = frames * (double)d->frame_bytes / d->token_bytes * r->token_bytes;
	}
	struct cost cost = {.gets = r->windows * frames,
		.bytes = r->windows * read,
		.used = r->windows * window,
		.exact = r->exact};

	/* Plain windows that follow each other share blocks. A manifest of files does not say which
	 * shards are plain. */
	if (r->exact && shard_as_served((enum shard_type)d->entry[0].type, d->token_bytes) &&
		r->order->shuffle == ORDER_NONE && window < STORE_BLOCK_BYTES) {
		cost.gets = ceil(
			r->windows * (double)d->table.stride * r->token_bytes / STORE_BLOCK_BYTES);
		cost.exact = false;
	}
	return cost;
}

/* The space in a cache with which an epoch fetches a piece once. */
static uint64_t cache_bytes(const struct reads *r)
{
	const struct config_dataset *c = r->dataset->config;
	double some = CACHE_PIECES * (double)c->piece, all = r->bytes,
	       windows = (double)c->block * c->group * CACHE_GROUPS;

	/* A part takes a run here and a run there, so that a piece is needed many times. */
	if (dataset_is_part(r->dataset) || c->shuffle == ORDER_GLOBAL)
		some = all;
	else if (c->shuffle == ORDER_BLOCK)
		some = all * windows / (double)r->dataset->windows + c->piece;
	return (uint64_t)fmin(some, all);
}

static struct cost piece_cost(const struct reads *r)
{
	double piece = r->dataset->config->piece, used = window_cost(r).used, all = r->bytes,
	       pieces = r->pieces;

	/* If not all of it fits, an epoch finds nothing of the one before: the piece that was not
	 * read for the longest time is removed. */
	const struct order_dataset *order = r->order;
	uint64_t cache = cache_bytes(r);
	bool fits = cache >= (uint64_t)all;
	double times = fits ? 1 : fmax(r->epochs, 1), epochs = r->epochs / times, part = 1,
	       sure = dataset_is_part(r->dataset) ? SURE * ORDER_RUN : SURE, /* it has runs */
		each = r->windows / times / r->nodes * (1 + used / r->windows / piece) / pieces,
	       shared = 0;

	if (order->shuffle == ORDER_NONE) {
		part = epochs;
	} else if (order->shuffle == ORDER_BLOCK) {
		double group = (double)order->block * order->group / (double)order->windows;

		part = ceil(epochs / group) * group; /* a group is read all over */
		/* Two blocks share the piece at their common end; it is fetched for each. */
		if (!fits)
			shared = fmax(r->windows / order->block -
					      r->epochs * (double)r->dataset->table.shards,
				0);
	}
	part = fmin(part, fmin(each, 1));

	double gets = ceil(pieces * part), bytes = fmin(gets * piece, all);

	return (struct cost){.gets = (gets * times + floor(shared)) * r->nodes,
		.bytes = (bytes * times + shared * piece) * r->nodes,
		.used = used,
		.cache = cache,
		.exact = r->exact && each >= sure && part >= 1 &&
			 (fits || (times <= 1 && order->shuffle == ORDER_NONE))};
}

/* ---- the command ---- */

/* @dataset NULL: the sum of all. @tokens: of the range. */
static void put(struct emit *e, const struct ctl_arguments *a, const char *dataset, enum mode mode,
	const struct cost *c, double tokens)
{
	static const char *const names[MODES] = {"window", "piece"};
	double rate = ctl_value(a, "rate")->decimal,
	       dollars = c->gets / 1000 * ctl_value(a, "get")->decimal +
			 c->bytes / 1e9 * ctl_value(a, "egress")->decimal;

	emit_text(e, "dataset", "dataset", dataset);
	emit_text(e, "mode", "mode", names[mode]);
	emit_number(e, "gets", "GETs", (uint64_t)c->gets);
	emit_json(e, rate > 0 ? NULL : "gets_per_second", "null");
	emit_decimal(e, rate > 0 ? "gets_per_second" : NULL, "GET/s",
		tokens > 0 ? c->gets * rate / tokens : 0, 2);
	emit_bytes(e, "bytes", "bytes", (uint64_t)c->bytes);
	emit_decimal(e, "read_per_used", "read/used", c->used > 0 ? c->bytes / c->used : 1, 2);
	emit_decimal(e, "dollars", "dollars", dollars, 2);
	emit_bytes(e, "cache_bytes", "cache per node", c->cache);
	emit_bool(e, "exact", "exact", c->exact);
	emit_bool(e, "chosen", "chosen", c->chosen);
	emit_row(e);
}

/* Computes dataset @d's costs, and adds them to @sum. False after an error was printed. */
static bool cost_dataset(const struct ctl_history *h, uint32_t d, double windows, double nodes,
	struct cost cost[MODES], struct cost sum[MODES])
{
	const struct dataset *dataset = h->map[d];
	struct reads r = {.dataset = dataset,
		.order = &h->cursor.order[d],
		.windows = windows,
		.epochs = windows / (double)h->cursor.order[d].windows,
		.nodes = nodes};

	cost[WINDOW] = cost[PIECE] = (struct cost){.exact = true};
	if (windows > 0 && !dataset)
		return ctl_error("dataset %s is no longer in the config; give --from, a position "
				 "after it was served last",
			h->cursor.dataset[d].name);
	if (windows > 0) {
		measure(&r);
		cost[WINDOW] = window_cost(&r);
		cost[PIECE] = piece_cost(&r);
	}
	if (dataset && dataset->bucket)
		cost[dataset->piece > 0 ? PIECE : WINDOW].chosen = true;
	for (enum mode mode = 0; mode < MODES; mode++) {
		sum[mode].gets += cost[mode].gets;
		sum[mode].bytes += cost[mode].bytes;
		sum[mode].used += cost[mode].used;
		sum[mode].cache += cost[mode].cache;
		sum[mode].exact &= cost[mode].exact;
	}
	return true;
}

static int answer(
	const struct ctl_arguments *a, const struct ctl_stream *s, const struct ctl_history *h)
{
	const struct cursor *cursor = &h->cursor;
	uint64_t from = ctl_number(a, "from", a->listed == 1 ? cursor->next : 0);
	double wanted = ceil(ctl_value(a, "for")->decimal / (double)cursor->seq_len);
	struct cost cost[MODES], sum[MODES] = {{.exact = true}, {.exact = true}};
	struct emit e = {.json = ctl_given(a, "json")};
	bool good = ctl_history_has(h, from);
	uint64_t left = good ? cursor_end(cursor) - from : 0,
		 to = from + (wanted < (double)left ? (uint64_t)wanted : left);
	double tokens = (double)(to - from) * (double)cursor->seq_len;

	(void)s;
	for (uint32_t d = 0; good && d < cursor->datasets; d++) {
		good = cost_dataset(h, d, samples(&h->order, d, from, to),
			(double)ctl_number(a, "nodes", 1), cost, sum);
		for (enum mode mode = 0; good && mode < MODES; mode++)
			put(&e, a, cursor->dataset[d].name, mode, &cost[mode], tokens);
	}
	for (enum mode mode = 0; good && cursor->datasets > 1 && mode < MODES; mode++)
		put(&e, a, NULL, mode, &sum[mode], tokens);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

static int run(const struct ctl_arguments *a)
{
	return ctl_with_history(a, true, answer);
}

static const struct ctl_option options[] = {
	CTL_HISTORY,
	{OPTION_NUMBER("from", "POSITION", 0, UINT64_MAX,
		"first position; default: that of a single --cursor, otherwise 0")},
	{OPTION_DECIMAL("for", "TOKENS", 1, 1e18,
		 "number of tokens to train on; a finite stream ends before"),
		.preset = "1e12"},
	{OPTION_NUMBER("nodes", "N", 1, LIMIT_WORLD, "number of nodes"), .preset = "1"},
	{OPTION_DECIMAL("rate", "TOKENS_PER_SECOND", 0, 1e15,
		"tokens per second of the whole job; default: unknown")},
	{OPTION_DECIMAL("get", "DOLLARS", 0, 1e6, "price of 1000 GETs"), .preset = "0.0004"},
	{OPTION_DECIMAL("egress", "DOLLARS", 0, 1e6, "price of a GB (10^9 bytes) that is read"),
		.preset = "0"},
	{CTL_JSON_OPTION},
};

const struct ctl_command ctl_cost = {
	.name = "cost",
	.arguments = "STREAM",
	.help = "compute what reading a stream from an object store costs",
	OPTIONS_ARE(options),
	.run = run,
};
