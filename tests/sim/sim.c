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
#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"
#include "daemon/reader/documents.h"

#include "tests/unit/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	STREAMS = 3,
	DATASETS = 5,
	SHARDS = 4,
	CLIENTS = 12,
	USERS = 3,
	RUNS = 2,				/* of a user */
	NODES = USERS + USERS * RUNS + CLIENTS, /* that share with others of their kind */
	DEPTH_MAX = 40,
	ROWS_MAX = 6,
	SLOTS_MAX = 9,
	WINDOW_MAX = 24,
	GRAVES = 64,
	TRIES = 3,
	EOS = 777,
};

/* ---- the world ---- */

struct dataset {
	struct table table;
	uint64_t tokens[SHARDS], first[SHARDS + 1];
	uint64_t key;	/* what its tokens are made of */
	uint32_t often; /* one in so many of them is EOS; 0: none is, but by chance */
};

struct stream {
	struct cursor begin;
	struct dataset dataset[DATASETS];
	struct feed_source source[DATASETS];
	uint32_t token_bytes;
	unsigned annotations; /* RING_DOCUMENTS, RING_LOSS_MASK */
};

struct client {
	enum { ABSENT, RUNNING, FAILED, LEAVING } state;
	struct feed *feed;
	const struct stream *stream;
	struct cursor cursor; /* where it attached */
	uint64_t rank, world, end;
	struct ring ring;
	void *meta, *data;

	uint64_t taken, released, answered;
	uint64_t seen[SLOTS_MAX];	    /* hashes of the slots it holds */
	bool reading[SLOTS_MAX * ROWS_MAX]; /* reads in flight, by row of the ring */
	bool asleep, hostile, stalled;
	bool kick, old_kick; /* a byte to the daemon is on its way; since before the last tick */
	bool lost_kick;	     /* one was dropped on purpose */
	bool wake;	     /* a byte from the daemon is on its way */
	bool told;	     /* FAILED or HOSTILE came */
	uint64_t found;	     /* lost bytes that the engine found */
	uint64_t overdue;    /* the wake_at that had been reached at the last tick already, no byte
			      * sent; 0: none
			      */
	uint64_t requested;  /* reads begun, retries aside */
	uint32_t user, run;  /* nodes */
};

struct read {
	struct engine_action action;
	unsigned tries;
};

struct grave {
	void *at;
	uint64_t bytes;
};

struct counts {
	uint64_t events, attached, slots, rows, padding, ended, waits, faults, retries, failures,
		hostile, ticks, lost, crashes, documents, labels, shared, slow;
};

struct sim {
	struct rng rng;
	uint64_t seed, trace;
	struct engine *engine;
	struct engine_actions out;
	unsigned depth;
	struct stream stream[STREAMS];
	struct client client[CLIENTS];
	struct read read[DEPTH_MAX];
	unsigned reads;
	bool slow[STREAMS];
	int64_t ahead[NODES][NODES]; /* bytes that one began more than the other since both could */
	const struct read *retried;  /* the read whose fault is being told to the engine */
	bool storm;		     /* every fourth read goes wrong for a while */
	struct grave grave[GRAVES];
	unsigned graves;
	struct counts counts;
};

#define CHECK(sim, what) ((what) ? (void)0 : broken(sim, #what, __LINE__))

__attribute__((noreturn)) static void broken(const struct sim *sim, const char *what, int line)
{
	fflush(stdout);
	fprintf(stderr, "sim: seed %" PRIu64 ", event %" PRIu64 ": line %d: not true: %s\n",
		sim->seed, sim->counts.events, line, what);
	abort();
}

static uint64_t below(struct sim *sim, uint64_t n)
{
	return rng_below(&sim->rng, n);
}

static bool one_in(struct sim *sim, uint64_t n)
{
	return below(sim, n) == 0;
}

static void trace(struct sim *sim, uint64_t what, uint64_t a, uint64_t b)
{
	sim->trace = order_derive(sim->trace, what, a, b);
}

static uint32_t id_of(const struct sim *sim, const struct client *c)
{
	return (uint32_t)(c - sim->client);
}

/* ---- streams ---- */

static void dataset_make(struct sim *sim, struct dataset *d, uint64_t window, uint64_t stride)
{
	d->key = rng_next(&sim->rng);
	d->table = (struct table){
		.window_tokens = window,
		.stride = stride,
		.shards = 1 + below(sim, SHARDS),
		.tokens = d->tokens,
		.first_window = d->first,
	};
	for (uint64_t s = 0; s < d->table.shards; s++)
		d->tokens[s] = one_in(sim, 4) ? below(sim, window + 2) : window + below(sim, 300);
	if (one_in(sim, 6))
		d->tokens[0] += UINT64_C(1) << 40;
	table_number(&d->table);
}

static struct cursor_source source_of(struct sim *sim, const struct dataset *d, const char *name)
{
	static const uint32_t sizes[] = {1, 2, 7, 64};

	return (struct cursor_source){
		.name = name,
		.weight = d->table.windows == 0 ? 0 : 0.01 + (double)below(sim, 100),
		.windows = d->table.windows,
		.digest = d->key,
		.block = sizes[below(sim, 4)],
		.group = sizes[below(sim, 4)],
		.shuffle = (enum order_shuffle)below(sim, 3),
		.slide = one_in(sim, 2),
	};
}

static void stream_make(struct sim *sim, struct stream *s)
{
	static const char *const names[DATASETS] = {"a", "b", "c", "d", "e"};
	struct cursor identity = {.stream = "sim",
		.seed = rng_next(&sim->rng),
		.seq_len = 1 + below(sim, WINDOW_MAX - 2)};
	struct cursor_source source[DATASETS];
	uint32_t n = 1 + (uint32_t)below(sim, DATASETS);
	struct fault fault;

	identity.extra = below(sim, 3);
	identity.stride = 1 + below(sim, 2 * identity.seq_len);
	s->token_bytes = one_in(sim, 2) ? 2 : 4;
	s->annotations =
		s == sim->stream ? RING_DOCUMENTS | RING_LOSS_MASK : (unsigned)below(sim, 4);
	for (uint32_t d = 0; d < n; d++) {
		do
			dataset_make(sim, &s->dataset[d], identity.seq_len + identity.extra,
				identity.stride);
		while (d == 0 && s->dataset[d].table.windows == 0);
		s->dataset[d].often =
			s->annotations & RING_DOCUMENTS ? (uint32_t)below(sim, 12) : 0;
		source[d] = source_of(sim, &s->dataset[d], names[d]);
		s->source[d] = (struct feed_source){
			.table = &s->dataset[d].table, .owner = &s->dataset[d]};
	}
	if (one_in(sim, 3))
		identity.epochs = 1 + below(sim, 3);
	else if (one_in(sim, 2))
		identity.samples = 1 + below(sim, 5000);
	CHECK(sim, cursor_begin(&s->begin, &identity, source, n, NULL, 0, &fault));
}

/* A cursor anywhere in the stream, with or without a mix on its way. */
static struct cursor random_cursor(struct sim *sim, const struct stream *s)
{
	struct cursor c;
	struct fault fault;
	uint64_t end = cursor_end(&s->begin),
		 near = end == UINT64_MAX || one_in(sim, 2) ? 5000 : 30;
	double weights[DATASETS];

	CHECK(sim, cursor_copy(&c, &s->begin));
	uint64_t to =
		end == UINT64_MAX && one_in(sim, 3) ? rng_wide(&sim->rng) >> 1 : below(sim, 5000);

	if (end != UINT64_MAX)
		to = end - below(sim, near < end ? near : end + 1);
	CHECK(sim, cursor_seek(&c, to, &fault));
	for (uint32_t d = 0; d < c.datasets; d++)
		weights[d] = c.order[d].windows == 0 || (d > 0 && one_in(sim, 3))
				     ? 0
				     : 1 + (double)below(sim, 9);
	if (!c.epochs && one_in(sim, 2))
		CHECK(sim, cursor_mix(&c, cursor_mix_at(&c), weights, &fault));
	return c;
}

/* ---- tokens: a function of place ---- */

static uint32_t token_at(const struct dataset *d, uint64_t shard, uint64_t token)
{
	uint64_t mixed = order_mix64(d->key ^ shard << 48 ^ token);

	return d->often && (mixed >> 32) % d->often == 0 ? EOS : (uint32_t)mixed;
}

static void write_tokens(const struct dataset *d, uint64_t shard, uint64_t token, uint64_t n,
	uint32_t bytes, uint8_t *to)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t value = token_at(d, shard, token + i);

		memcpy(to + i * bytes, &value, bytes); /* little-endian, as here */
	}
}

/* What may be a label is told by the token alone. A read that goes wrong leaves nonsense. */
static void write_annotations(const struct engine_action *a, uint32_t bytes, bool bad)
{
	if (a->annotations.count)
		*a->annotations.count = bad ? UINT32_MAX
					    : documents_find(a->annotations.start, a->to,
						      (uint32_t)a->tokens, bytes, EOS);
	for (uint64_t i = 0; a->annotations.loss_mask && i < a->tokens; i++)
		a->annotations.loss_mask[i] = bad ? 0xee : ((const uint8_t *)a->to)[i * bytes] & 1;
}

/* Shard and offset of a window, by counting. */
static void locate(const struct dataset *d, const struct order_dataset *o, uint64_t seed,
	const struct order_place *p, uint64_t *shard, uint64_t *offset)
{
	const struct table *t = &d->table;
	uint64_t window = p->window;

	for (*shard = 0;
		window >= order_shard_windows(t->tokens[*shard], t->window_tokens, t->stride);
		++*shard)
		window -= order_shard_windows(t->tokens[*shard], t->window_tokens, t->stride);
	*offset = window * t->stride +
		  order_slide(o, seed, p->epoch, *shard,
			  order_shard_slack(t->tokens[*shard], t->window_tokens, t->stride));
}

/* ---- clients ---- */

static void *map(struct sim *sim, uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(sim, at != MAP_FAILED);
	return at;
}

/* Nothing may touch it any more; the oldest grave is dug up for good. */
static void bury(struct sim *sim, void *at, uint64_t bytes)
{
	struct grave *g = &sim->grave[sim->graves++ % GRAVES];

	if (g->at)
		munmap(g->at, g->bytes);
	*g = (struct grave){at, bytes};
	CHECK(sim, mprotect(at, bytes, PROT_NONE) == 0);
}

static uint64_t published(const struct client *c)
{
	return ring_published(&c->ring);
}

static uint64_t batches_to_come(const struct client *c)
{
	uint64_t end = cursor_end(&c->cursor), step = c->world * c->ring.geometry.rows;

	return end == UINT64_MAX ? RING_ENDLESS : (end - c->cursor.next + step - 1) / step;
}

static void client_make(struct sim *sim, struct client *c)
{
	const struct stream *s = &sim->stream[below(sim, STREAMS)];
	uint64_t rows = 1 + below(sim, ROWS_MAX), slots = 1 + below(sim, SLOTS_MAX);
	struct ring_geometry g;
	struct fault fault;

	*c = (struct client){.state = RUNNING, .stream = s, .cursor = random_cursor(sim, s)};
	c->world = 1 + below(sim, 5);
	c->rank = below(sim, c->world);
	c->user = (uint32_t)below(sim, USERS);
	c->run = USERS + c->user * RUNS + (uint32_t)below(sim, RUNS);
	CHECK(sim, ring_geometry(&g, slots, rows, s->begin.seq_len + s->begin.extra, s->token_bytes,
			   s->annotations, &fault));
	c->meta = map(sim, g.meta_bytes);
	c->data = map(sim, g.data_bytes);
	ring_format(&c->ring, &g, c->meta, c->data);
	c->end = batches_to_come(c);
	c->feed = feed_new(&c->cursor, &(struct feed_options){
					       .id = id_of(sim, c),
					       .stream = (uint32_t)(s - sim->stream),
					       .user = c->user,
					       .run = c->run,
					       .rank = c->rank,
					       .world = c->world,
					       .ring = c->ring,
					       .source = s->source,
				       });
	CHECK(sim, c->feed);
	CHECK(sim, atomic_load(&c->ring.header->end) == c->end);
}

static void client_bury(struct sim *sim, struct client *c)
{
	uint64_t meta_bytes = c->ring.geometry.meta_bytes, data_bytes = c->ring.geometry.data_bytes;

	for (unsigned i = 0; i < SLOTS_MAX * ROWS_MAX; i++)
		CHECK(sim, !c->reading[i]);
	feed_free(c->feed);
	cursor_free(&c->cursor);
	bury(sim, c->meta, meta_bytes);
	bury(sim, c->data, data_bytes);
	c->state = ABSENT;
}

static uint64_t slot_hash(const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;

	uint32_t index = (uint32_t)(s % g->slots) * g->rows;
	uint64_t hash = 0;

	for (uint32_t i = index; g->documents && i < index + g->rows; i++)
		hash = hash * 31 + order_checksum(ring_document_start(&c->ring, i),
					   *ring_document_count(&c->ring, i) * sizeof(uint32_t));
	if (g->loss_mask)
		hash += order_checksum(
			ring_loss_mask(&c->ring, index), (size_t)g->rows * g->window_tokens);
	return hash ^ order_checksum(ring_slot_data(&c->ring, s), g->slot_bytes) ^
	       order_checksum(ring_rows(&c->ring, s), g->rows * sizeof(struct ring_row)) * 3 ^
	       order_checksum(ring_slot(&c->ring, s), sizeof(struct ring_slot)) * 5;
}

static bool all_zero(const uint8_t *bytes, uint64_t n)
{
	while (n > 0 && bytes[n - 1] == 0)
		n--;
	return n == 0;
}

static void check_padding(
	struct sim *sim, const struct ring_row *row, const uint8_t *bytes, uint64_t n)
{
	CHECK(sim, row->position == RING_PADDING);
	CHECK(sim, row->epoch == 0 && row->window == 0 && row->offset == 0 && row->dataset == 0 &&
			   row->shard == 0);
	CHECK(sim, all_zero(bytes, n));
	sim->counts.padding++;
}

static void check_row(struct sim *sim, const struct client *c, uint64_t position,
	const struct ring_row *row, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;
	struct order order = cursor_order(&c->cursor);
	struct order_place p;
	uint8_t expected[WINDOW_MAX * 4];
	uint64_t shard, offset;

	CHECK(sim, order_at(&order, position, &p));
	const struct dataset *d = &c->stream->dataset[p.dataset];

	locate(d, &c->cursor.order[p.dataset], c->cursor.seed, &p, &shard, &offset);
	CHECK(sim, row->position == position);
	CHECK(sim, row->dataset == p.dataset && row->epoch == p.epoch && row->window == p.window);
	CHECK(sim, row->shard == shard && row->offset == offset);
	write_tokens(d, shard, offset, g->window_tokens, g->token_bytes, expected);
	CHECK(sim, memcmp(bytes, expected, (size_t)g->window_tokens * g->token_bytes) == 0);
	sim->counts.rows++;
}

/* Of ring row @index, in which are the tokens @bytes: zeros, if it is padding. */
static void check_documents(
	struct sim *sim, const struct client *c, uint32_t index, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint32_t n = 0, token;

	if (!g->documents)
		return;
	for (uint32_t i = 1; i < g->window_tokens; i++) {
		token = 0;
		memcpy(&token, bytes + (size_t)(i - 1) * g->token_bytes, g->token_bytes);
		if (token == EOS)
			CHECK(sim, ring_document_start(&c->ring, index)[n++] == i);
	}
	CHECK(sim, *ring_document_count(&c->ring, index) == n);
	sim->counts.documents += n;
}

/* Padding's tokens are 0, and no labels. */
static void check_loss_mask(
	struct sim *sim, const struct client *c, uint32_t index, const uint8_t *bytes)
{
	const struct ring_geometry *g = &c->ring.geometry;

	for (uint32_t i = 0; g->loss_mask && i < g->window_tokens; i++) {
		CHECK(sim, ring_loss_mask(&c->ring, index)[i] == (bytes[i * g->token_bytes] & 1));
		sim->counts.labels += ring_loss_mask(&c->ring, index)[i];
	}
}

static void check_slot(struct sim *sim, const struct client *c, uint64_t s)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t first = c->cursor.next + (s * c->world + c->rank) * g->rows,
		 end = cursor_end(&c->cursor), valid = 0;
	uint64_t row_bytes = (uint64_t)g->window_tokens * g->token_bytes;

	for (uint32_t r = 0; r < g->rows; r++) {
		const uint8_t *bytes = (uint8_t *)ring_slot_data(&c->ring, s) + r * row_bytes;

		if (first + r < end)
			check_row(sim, c, first + r, &ring_rows(&c->ring, s)[r], bytes);
		else
			check_padding(sim, &ring_rows(&c->ring, s)[r], bytes, row_bytes);
		check_documents(sim, c, (uint32_t)(s % g->slots) * g->rows + r, bytes);
		check_loss_mask(sim, c, (uint32_t)(s % g->slots) * g->rows + r, bytes);
		valid += first + r < end;
	}
	CHECK(sim, ring_slot(&c->ring, s)->rows_valid == valid);
	CHECK(sim, ring_slot(&c->ring, s)->position == first);
}

/* ---- the engine's side of things ---- */

static struct client *client_of(struct sim *sim, uint32_t id)
{
	CHECK(sim, id < CLIENTS);
	CHECK(sim, sim->client[id].state != ABSENT);
	return &sim->client[id];
}

/* Reads that this client's ranks still need, in all; a slot of an endless stream is never padding
 * here. */
static bool wants_more(const struct client *c)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint64_t slots = c->requested / g->rows;

	if (c->end == RING_ENDLESS)
		return true;

	uint64_t first =
		c->cursor.next + (slots * c->world + c->rank) * g->rows + c->requested % g->rows;

	return slots < c->end && first < cursor_end(&c->cursor);
}

/* It has room and the daemon knows: a sleeping feed shows a wake_at. */
static bool hungry(const struct client *c)
{
	return c->state == RUNNING && !c->told && atomic_load(&c->ring.header->wake_at) == 0 &&
	       wants_more(c);
}

static unsigned reads_of(const struct sim *sim, const struct stream *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < sim->reads; i++)
		n += sim->client[sim->read[i].action.id].stream == s;
	return n;
}

/* Reads that the stream may have in flight. */
static unsigned share_of(const struct sim *sim, const struct stream *s)
{
	unsigned quarter = sim->depth / 4 ? sim->depth / 4 : 1, left = sim->depth, others = 0;

	for (unsigned i = 0; i < STREAMS; i++) {
		unsigned n = sim->slow[i] ? reads_of(sim, &sim->stream[i]) : 0;

		left -= n;
		others += &sim->stream[i] == s ? 0 : n;
	}
	if (!sim->slow[s - sim->stream])
		return left - left / 4;
	return others < quarter ? quarter - others : 0;
}

static bool is_slow(const struct sim *sim, const struct stream *s)
{
	return sim->slow[s - sim->stream];
}

/* Surely: who waited is let in when an eighth of the share is free. */
static bool has_share(const struct sim *sim, const struct stream *s)
{
	unsigned most = share_of(sim, s);

	return reads_of(sim, s) + most / 8 < most;
}

static uint32_t node_of(const struct sim *sim, const struct client *c)
{
	return USERS + USERS * RUNS + id_of(sim, c);
}

/* Do both share the same? Users the whole, runs their user's part, feeds their run's. */
static bool siblings(const struct sim *sim, uint32_t a, uint32_t b)
{
	const uint32_t clients = USERS + USERS * RUNS;

	if (a < USERS || b < USERS)
		return a < USERS && b < USERS;
	if (a < clients || b < clients)
		return a < clients && b < clients && (a - USERS) / RUNS == (b - USERS) / RUNS;
	return sim->client[a - clients].run == sim->client[b - clients].run;
}

/* Only padding may be left to plan, which is paid for, too, and not seen here. */
static bool pads(const struct client *c)
{
	return c->state == RUNNING && !wants_more(c) && published(c) < c->end;
}

/* Accounts begin where two could go on, and end when one of them cannot. */
static void close_accounts(struct sim *sim)
{
	bool able[NODES] = {false}, pad[NODES] = {false};

	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct client *c = &sim->client[i];

		if (c->state != ABSENT && hungry(c) && has_share(sim, c->stream))
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

static void charge(struct sim *sim, const struct client *by, int64_t cost)
{
	account(sim, by->user, cost);
	account(sim, by->run, cost);
	account(sim, node_of(sim, by), cost);
	close_accounts(sim);
}

/* @by has begun a read. Wakes are paid for, too, but do not wait for their turn: there may be one
 * for each client. */
static void check_shares(struct sim *sim, const struct client *by)
{
	uint32_t node[] = {by->user, by->run, node_of(sim, by)};
	int64_t bound = 2 * (TURN_QUANTUM + TURN_ROW + WINDOW_MAX * 4) + CLIENTS * TURN_WAKE;

	for (unsigned i = 0; i < 3; i++)
		for (uint32_t other = 0; other < NODES; other++) {
			CHECK(sim, sim->ahead[node[i]][other] <= bound);
			sim->counts.shared += sim->ahead[node[i]][other] > 0;
		}
}

/* Number of the slot that a row of the ring belongs to: it must be one the client cannot look at.
 */
static void check_target(struct sim *sim, const struct client *c, const struct engine_action *a)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint32_t index = (uint32_t)a->tag, slot = index / g->rows;
	uint64_t row_bytes = (uint64_t)g->window_tokens * g->token_bytes;

	CHECK(sim, a->tag >> 32 == a->id && slot < g->slots);
	CHECK(sim,
		a->to == (uint8_t *)ring_slot_data(&c->ring, slot) + index % g->rows * row_bytes);
	CHECK(sim, a->tokens == g->window_tokens);
	for (uint64_t s = c->released; s < published(c); s++)
		CHECK(sim, c->hostile || s % g->slots != slot);
}

static void begin_read(struct sim *sim, const struct engine_action *a)
{
	struct client *c = client_of(sim, a->id);
	const struct dataset *d = a->owner;
	bool again = sim->retried && sim->retried->action.tag == a->tag;

	CHECK(sim, c->state == RUNNING && !c->told);
	CHECK(sim, sim->reads < sim->depth);
	CHECK(sim, again || reads_of(sim, c->stream) < share_of(sim, c->stream));
	CHECK(sim, d >= c->stream->dataset && d < c->stream->dataset + c->cursor.datasets);
	CHECK(sim, a->shard < d->table.shards && a->token <= d->tokens[a->shard] - a->tokens);
	check_target(sim, c, a);
	CHECK(sim, !c->reading[(uint32_t)a->tag]);
	c->reading[(uint32_t)a->tag] = true;
	sim->read[sim->reads++] = (struct read){*a, again ? sim->retried->tries + 1 : 1};
	sim->counts.retries += again;
	if (again) {
		CHECK(sim, sim->retried->tries < TRIES);
		CHECK(sim, a->owner == sim->retried->action.owner &&
				   a->shard == sim->retried->action.shard);
		CHECK(sim,
			a->token == sim->retried->action.token && a->to == sim->retried->action.to);
		return;
	}
	c->requested++;
	charge(sim, c, TURN_ROW + (int64_t)a->tokens * c->ring.geometry.token_bytes);
	check_shares(sim, c);
}

static void told_failed(struct sim *sim, struct client *c)
{
	CHECK(sim, c->state == FAILED && !c->told);
	c->told = true;
	sim->counts.failures++;
}

static void told_hostile(struct sim *sim, struct client *c)
{
	CHECK(sim, c->state == RUNNING && c->hostile && !c->told);
	c->told = true;
	sim->counts.hostile++;
}

static void perform(struct sim *sim, const struct engine_action *a)
{
	struct client *c = client_of(sim, a->id);

	trace(sim, 100 + a->type, a->id, a->type == ENGINE_READ ? a->token : 0);
	switch (a->type) {
	case ENGINE_READ:
		begin_read(sim, a);
		break;
	case ENGINE_WAKE:
		CHECK(sim, c->state == RUNNING);
		c->wake = true;
		charge(sim, c, TURN_WAKE);
		break;
	case ENGINE_FAILED:
		told_failed(sim, c);
		break;
	case ENGINE_HOSTILE:
		told_hostile(sim, c);
		break;
	case ENGINE_GONE:
		CHECK(sim, c->state == LEAVING && a->feed == c->feed);
		client_bury(sim, c);
		break;
	}
}

static void step(struct sim *sim, struct engine_event event)
{
	trace(sim, event.type, event.id, event.tag);
	do {
		sim->out.count = 0;
		engine_step(sim->engine, &event, &sim->out);
		for (unsigned i = 0; i < sim->out.count; i++)
			perform(sim, &sim->out.action[i]);
		event = (struct engine_event){.type = ENGINE_PUMP, .id = UINT32_MAX};
	} while (sim->out.more);
}

/* ---- what may happen ---- */

static void attach(struct sim *sim, struct client *c)
{
	client_make(sim, c);
	sim->counts.attached++;
	step(sim,
		(struct engine_event){.type = ENGINE_ATTACH, .id = id_of(sim, c), .feed = c->feed});
}

static void detach(struct sim *sim, struct client *c)
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

/* The read @r is done, with the tokens or, half way, with a fault. */
static void finish_read(struct sim *sim, struct read r, unsigned faults)
{
	struct client *c = client_of(sim, r.action.id);
	const struct dataset *d = r.action.owner;
	struct engine_event event = {.type = ENGINE_DONE, .id = UINT32_MAX, .tag = r.action.tag};
	bool bad = faults > 0 && one_in(sim, faults);

	check_target(sim, c, &r.action);
	write_tokens(d, r.action.shard, r.action.token, bad ? r.action.tokens / 2 : r.action.tokens,
		c->ring.geometry.token_bytes, r.action.to);
	write_annotations(&r.action, c->ring.geometry.token_bytes, bad);
	c->reading[(uint32_t)r.action.tag] = false;
	if (bad) {
		event.fault = 5;
		event.retryable = !one_in(sim, 20);
		sim->counts.faults++;
		if (c->state == RUNNING && !c->told && (!event.retryable || r.tries == TRIES))
			fail_stream(sim, c->stream);
	}
	sim->retried = bad ? &r : NULL;
	step(sim, event);
	sim->retried = NULL;
}

static void some_read(struct sim *sim, unsigned faults)
{
	if (sim->reads == 0)
		return;
	unsigned at = (unsigned)below(sim, sim->reads);
	struct read r = sim->read[at];

	if (is_slow(sim, client_of(sim, r.action.id)->stream) && !one_in(sim, 200))
		return; /* it hangs */
	sim->read[at] = sim->read[--sim->reads];
	finish_read(sim, r, faults);
}

static void take(struct sim *sim, struct client *c)
{
	CHECK(sim, c->taken < c->end);
	check_slot(sim, c, c->taken);
	c->seen[c->taken % SLOTS_MAX] = slot_hash(c, c->taken);
	c->taken++;
	sim->counts.slots++;
	trace(sim, 200, id_of(sim, c), c->seen[(c->taken - 1) % SLOTS_MAX]);
}

static void release(struct sim *sim, struct client *c, uint64_t n)
{
	for (uint64_t s = c->released; s < c->released + n; s++)
		CHECK(sim, c->seen[s % SLOTS_MAX] == slot_hash(c, s));
	c->released += n;

	uint64_t wake_at = ring_release(&c->ring, c->released);

	if (wake_at == 0 || wake_at == c->answered)
		return;
	c->answered = wake_at;
	c->kick = !one_in(sim, 100);
	c->lost_kick |= !c->kick;
}

/* Announces its wait; a daemon that sleeps meanwhile is told, for what it sleeps for may never come
 * while slots are held. */
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
	detach(sim, c);
}

/* One thing that a healthy client does. */
static void client_turn(struct sim *sim, struct client *c)
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

static void deliver_kick(struct sim *sim, struct client *c)
{
	c->kick = c->old_kick = false;
	step(sim, (struct engine_event){.type = ENGINE_KICK, .id = id_of(sim, c)});
}

static void deliver_wake(struct client *c)
{
	c->wake = c->asleep = false;
	ring_wait_end(&c->ring);
}

/* A second has passed: no byte is on its way longer than that. */
static void tick(struct sim *sim)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (sim->client[i].state != ABSENT && sim->client[i].kick &&
			sim->client[i].old_kick)
			deliver_kick(sim, &sim->client[i]);
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

static void lie(struct sim *sim, struct client *c)
{
	uint64_t lies[] = {published(c) + 1, c->released - 1, UINT64_MAX, 0, rng_wide(&sim->rng),
		published(c)};

	c->hostile = true;
	c->asleep = false;
	atomic_store(&c->ring.control->released, lies[below(sim, 6)]);
	atomic_store(&c->ring.control->client_waits, one_in(sim, 2) ? 0 : rng_wide(&sim->rng));
	c->kick = true;
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
		CHECK(sim, c->hostile || sim->out.more || sim->reads == sim->depth || !hungry(c) ||
				   !has_share(sim, c->stream));
	}
}

/* ---- events ---- */

static void client_event(struct sim *sim, struct client *c)
{
	if (c->state == ABSENT) {
		if (one_in(sim, 20))
			attach(sim, c);
	} else if (c->state == LEAVING) {
		return;
	} else if (one_in(sim, 1500) || c->told) {
		sim->counts.crashes += !c->told;
		detach(sim, c);
	} else if (c->kick && one_in(sim, 2)) {
		deliver_kick(sim, c);
	} else if (c->wake && one_in(sim, 2)) {
		deliver_wake(c);
	} else if (c->hostile) {
		return;
	} else if (one_in(sim, 4000)) {
		lie(sim, c);
	} else if (one_in(sim, c->stalled ? 60 : 300)) {
		c->stalled = !c->stalled;
	} else if (!c->stalled && c->state == RUNNING) {
		client_turn(sim, c);
	}
}

static void turn_slow(struct sim *sim, uint32_t stream, bool slow)
{
	sim->slow[stream] = slow;
	sim->counts.slow += slow && reads_of(sim, &sim->stream[stream]) > sim->depth / 4;
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
	close_accounts(sim);
	check_world(sim);
}

/* ---- the end: everything that can finish does ---- */

static void leave_everybody(struct sim *sim)
{
	for (uint32_t i = 0; i < STREAMS; i++)
		turn_slow(sim, i, false);
	for (unsigned i = 0; i < CLIENTS; i++)
		if (sim->client[i].state == RUNNING || sim->client[i].state == FAILED)
			detach(sim, &sim->client[i]);
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
				deliver_kick(sim, c);
			else if (c->wake)
				deliver_wake(c);
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
