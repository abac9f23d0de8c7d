/*
 * Three rescales to as many as 32,768 ranks, with another mix in between. A feed plans the first
 * three micro-batches of every rank. Together they cover the positions from the old cursor to the
 * new one, and no window is served twice.
 */
#include "tests/prove/prove.h"

enum { WORLD = 32768, BATCHES = 3, LEGS = 3, MICRO = 8, BRIEF_WORLD = 2048 };

#define WINDOWS (UINT64_C(1) << 24)

struct run {
	struct prove *p;
	struct cursor cursor;
	uint8_t *window; /* [datasets × 2 × WINDOWS / 8] bits: windows of even and of odd epochs */
	uint8_t *seen;	 /* positions from cursor.next on */
	uint64_t room, positions;
};

static void row_seen(void *context, uint64_t rank, uint64_t batch, uint32_t row, uint64_t position,
	const struct order_place *place)
{
	struct run *run = context;
	uint64_t at = position - run->cursor.next;

	PROVE(run->p, place && position >= run->cursor.next && at < run->room && !run->seen[at],
		"rank %" PRIu64 ", micro-batch %" PRIu64 ", row %u: position %" PRIu64, rank, batch,
		row, position);
	run->seen[at] = 1;

	uint64_t bit = ((uint64_t)place->dataset * 2 + place->epoch % 2) * WINDOWS + place->window;

	PROVE(run->p, !(run->window[bit / 8] >> bit % 8 & 1),
		"window %" PRIu64 " of dataset %u is served twice, at %" PRIu64
		" for the second time",
		place->window, place->dataset, position);
	run->window[bit / 8] |= (uint8_t)(1u << bit % 8);
}

static void leg(struct run *run, uint64_t world, uint32_t micro_batch)
{
	struct prove_feeds *feeds = prove_feeds_new(run->p, &run->cursor, micro_batch);
	uint64_t step = world * micro_batch, next = run->cursor.next;
	struct fault fault;

	run->room = BATCHES * step;
	run->seen = prove_memory(run->p, run->room, 1);
	for (uint64_t r = 0; r < world; r++)
		prove_feed(feeds, &run->cursor, r, world, BATCHES, row_seen, run);
	for (uint64_t i = 0; i < run->room; i++)
		PROVE(run->p, run->seen[i], "nobody had %" PRIu64, run->cursor.next + i);
	for (unsigned m = 0; m < BATCHES; m++)
		next = order_rank_next(next, step, UINT64_MAX);
	PROVE(run->p,
		next == run->cursor.next + run->room && cursor_seek(&run->cursor, next, &fault),
		"%s", fault.text);
	run->positions += run->room;
	free(run->seen);
	prove_feeds_free(feeds);
}

static void begin(struct run *run, struct prove *p)
{
	struct cursor identity = {.stream = "train", .seed = p->seed, .seq_len = 1, .stride = 1};
	struct cursor_source sources[] = {
		{"web", .7, WINDOWS, 1, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
		{"code", .25, WINDOWS - 12345, 1, 64, 64, ORDER_BLOCK, false, 0, 0, 0},
		{"math", .05, WINDOWS - 1, 1, 64, 64, ORDER_NONE, false, 0, 0, 0},
	};
	struct fault fault;

	PROVE(p, cursor_begin(&run->cursor, &identity, sources, 3, NULL, 0, &fault), "%s: %s",
		fault.field, fault.text);
	PROVE(p, cursor_seek(&run->cursor, rng_wide(&p->rng) >> 4, &fault), "%s: %s", fault.field,
		fault.text);
	run->p = p;
	run->window = prove_memory(p, 3 * 2 * WINDOWS / 8, 1);
}

static void run_ranks(struct prove *p)
{
	uint64_t most = p->brief ? BRIEF_WORLD : WORLD, legs = rng_below(&p->rng, LEGS);
	double weights[3];
	struct fault fault;
	struct run run = {0};

	begin(&run, p);
	for (unsigned i = 0; i < LEGS; i++) {
		/* One leg of all ranks, and others of random worlds. */
		leg(&run, i == legs ? most : 1 + rng_below(&p->rng, most),
			1 + (uint32_t)rng_below(&p->rng, MICRO));
		prove_weights(&p->rng, &run.cursor, weights);
		PROVE(p, cursor_mix(&run.cursor, cursor_mix_at(&run.cursor), weights, &fault), "%s",
			fault.text);
		prove_bytes(p, &run.cursor);
	}
	atomic_fetch_add(&p->sums->cases, LEGS);
	atomic_fetch_add(&p->sums->positions, run.positions);
	free(run.window);
	cursor_free(&run.cursor);
}

const struct prove_part prove_ranks = {
	.name = "ranks",
	.what = "32,768 ranks after a rescale: the first three micro-batches of all, distinct and "
		"covering",
	.units = 20,
	.brief_units = 3,
	.run = run_ranks,
};
