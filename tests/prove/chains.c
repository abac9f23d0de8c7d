/*
 * Random chains of at least six rescales, worlds up to 32,768, with edits, skips, rewinds and
 * restarts from older cursors in between.
 *
 * Each leg checks every micro-batch of every rank: together they cover the positions from the old
 * cursor to the new one, without gap or overlap. Some positions are looked up by their windows,
 * too: during the leg, and again at the end of the chain, by the whole history of its mixes.
 */
#include "tests/prove/prove.h"

enum { WORLD = 32768, CHAINS = 100, LEGS = 6, RECORDS = 4, RECORDS_MOST = 128 };

struct record {
	uint64_t position;
	struct order_place place;
};

struct run {
	struct prove_chain chain;
	struct record record[RECORDS_MOST];
	unsigned records;
	uint64_t slices;
};

/* All ranks take @batches. Returns the cursor's next position. */
static uint64_t take_all(struct run *run, uint64_t world, uint64_t micro_batch, uint64_t batches)
{
	const struct cursor *c = &run->chain.cursor;
	uint64_t end = cursor_end(c), taken = c->next, expected = c->next;

	for (uint64_t m = 0; m < batches && taken < end; m++) {
		for (uint64_t r = 0; r < world; r++) {
			uint64_t first = order_rank_position(c->next, m, r, world, micro_batch);
			uint64_t left = first < end ? end - first : 0,
				 valid = left < micro_batch ? left : micro_batch;

			PROVE(run->chain.p, valid == 0 || first == expected,
				"rank %" PRIu64 " of %" PRIu64 ", batch %" PRIu64 " of %" PRIu64
				" samples from %" PRIu64 " on: at %" PRIu64 ", expected %" PRIu64,
				r, world, m, micro_batch, c->next, first, expected);
			expected += valid;
		}
		taken = order_rank_next(taken, world * micro_batch, end);
		PROVE(run->chain.p, taken == expected,
			"%" PRIu64 " ranks have [%" PRIu64 ", %" PRIu64
			"), the cursor goes to %" PRIu64,
			world, c->next, expected, taken);
		run->slices += world;
	}
	return taken;
}

/* Records the windows of some positions, and looks them up by the present cursor and by the
 * history. */
static void record(struct run *run, uint64_t from, uint64_t to)
{
	struct order now = cursor_order(&run->chain.cursor);
	struct order history = prove_order(&run->chain.history, &run->chain.cursor);

	for (unsigned i = 0; i < RECORDS && from < to && run->records < RECORDS_MOST; i++) {
		struct record *r = &run->record[run->records++];
		struct order_place again;
		uint64_t back = 0;

		r->position = i == 0   ? from
			      : i == 1 ? to - 1
				       : from + rng_below(&run->chain.p->rng, to - from);
		PROVE(run->chain.p, order_at(&now, r->position, &r->place), "nothing at %" PRIu64,
			r->position);
		PROVE(run->chain.p,
			order_at(&history, r->position, &again) && prove_same(&again, &r->place),
			"history and cursor differ at %" PRIu64, r->position);
		PROVE(run->chain.p, order_when(&now, &r->place, &back) && back == r->position,
			"the window of %" PRIu64 " is found at %" PRIu64, r->position, back);
	}
}

static void leg(struct run *run)
{
	struct prove_chain *c = &run->chain;
	struct rng *rng = &c->p->rng;
	/* Few worlds are very large, because they take most of the time. */
	uint64_t world = prove_log(rng, rng_below(rng, 8) == 0 ? 15 : 10),
		 micro_batch = prove_log(rng, 5);
	uint64_t from, to;

	if (rng_below(rng, 256) == 0)
		world = WORLD;
	from = c->cursor.next;
	to = take_all(run, world, micro_batch, 1 + rng_below(rng, 3));

	record(run, from, to);
	prove_chain_move(c, to);
	prove_bytes(c->p, &c->cursor);
	prove_remember(c->p, &c->history, &c->cursor);
	prove_chain_save(c);
}

/* Forgets records past the cursor: they were undone. */
static void forget_undone(struct run *run)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < run->records; i++)
		if (run->record[i].position < run->chain.cursor.next)
			run->record[kept++] = run->record[i];
	run->records = kept;
}

/* Verifies that the window of every recorded position is unchanged. */
static void look_back(const struct run *run)
{
	const struct prove_chain *c = &run->chain;
	struct order history = prove_order(&c->history, &c->cursor);

	for (unsigned i = 0; i < run->records; i++) {
		const struct record *r = &run->record[i];
		struct order_place place;
		uint64_t back = 0;

		PROVE(c->p,
			order_at(&history, r->position, &place) && prove_same(&place, &r->place),
			"position %" PRIu64 " changed after it was served", r->position);
		PROVE(c->p, order_when(&history, &r->place, &back) && back == r->position,
			"the window of %" PRIu64 " is found at %" PRIu64, r->position, back);
	}
}

static void one_chain(struct prove *p, struct run *run)
{
	struct rng *rng = &p->rng;
	uint64_t first = rng_below(rng, 3) == 0 ? 0 : rng_wide(rng) >> 2, kind = rng_below(rng, 8);
	struct cursor identity = {0};
	unsigned legs = LEGS + (unsigned)rng_below(rng, 5);

	if (kind == 0) {
		identity.epochs = 1 + rng_below(rng, 1 << 18); /* of 62 × 2^40: below 2^64 */
	} else if (kind < 3) {
		identity.samples = first + 1 + rng_wide(rng) / 4;
		identity.samples += !identity.samples;
	}
	prove_chain_begin(&run->chain, p, &identity, 1 + rng_wide(rng) % (UINT64_C(1) << 40));
	run->records = 0;
	if (first > cursor_end(&run->chain.cursor))
		first = rng_below(rng, cursor_end(&run->chain.cursor));
	prove_chain_move(&run->chain, first);
	run->chain.first = first;
	prove_remember(p, &run->chain.history, &run->chain.cursor);
	for (unsigned i = 0; i < legs; i++) {
		leg(run);
		for (uint64_t edits = rng_below(rng, 4); edits > 0; edits--) {
			prove_chain_edit(&run->chain, true);
			forget_undone(run);
		}
	}
	look_back(run);
	prove_chain_free(&run->chain);
}

static void run_chains(struct prove *p)
{
	struct run *run = prove_memory(p, 1, sizeof(*run));

	for (unsigned i = 0; i < CHAINS; i++)
		one_chain(p, run);
	atomic_fetch_add(&p->sums->cases, CHAINS);
	atomic_fetch_add(&p->sums->positions, run->slices);
	free(run);
}

const struct prove_part prove_chains = {
	.name = "chains",
	.what = "six and more rescales up to 32,768 ranks, edits, skips and restarts between: the "
		"union is "
		"exactly once",
	.units = UINT64_MAX,
	.brief_units = 40,
	.timed = true,
	.run = run_chains,
};

/* ---- whole orders: every position of a short run with many edits. Each is found by its window,
 * and each dataset's ordinals are served without gap or repeat over all segments. ---- */

enum { BLOCKS = 8, SMALL = 400, ASKED = 500 };

/* Counts the samples of each dataset before @total, a multiple of LIMIT_BLOCK, by the segment that
 * begins there. */
static void counts_at(const struct prove_chain *c, uint64_t total, uint64_t *counts)
{
	struct order_segment *const *list = c->history.segment;
	const struct order_segment *s = list[0];
	struct order_segment *then = NULL;

	for (uint32_t i = 1; i < c->history.segments && list[i]->start <= total; i++)
		s = list[i];
	if (s->start < total) {
		then = order_segment_next(s, total, s->units, s->datasets);
		PROVE(c->p, then, "out of memory");
		s = then;
	}
	memset(counts, 0, c->cursor.datasets * sizeof(*counts));
	memcpy(counts, s->base, s->datasets * sizeof(*counts));
	order_segment_free(then);
}

static void look_at_all(const struct prove_chain *c, uint64_t total, const uint64_t *counts)
{
	struct order order = prove_order(&c->history, &c->cursor);
	uint64_t at[LIMIT_DATASETS], sum = 0;

	for (uint32_t d = 0; d < c->cursor.datasets; d++) {
		uint64_t limit = c->cursor.order[d].windows * c->cursor.dataset[d].max_epochs;

		PROVE(c->p, limit == 0 || counts[d] <= limit,
			"dataset %u serves %" PRIu64 " of %" PRIu64, d, counts[d], limit);
		at[d] = sum;
		sum += counts[d];
	}
	PROVE(c->p, sum == total, "%" PRIu64 " samples in %" PRIu64 " positions", sum, total);

	uint8_t *seen = prove_memory(c->p, total, 1);

	for (uint64_t i = 0; i < total; i++) {
		struct order_place place;
		uint64_t back = 0;

		PROVE(c->p, order_at(&order, i, &place), "nothing at %" PRIu64, i);
		PROVE(c->p, order_when(&order, &place, &back) && back == i,
			"the window of %" PRIu64 " is found at %" PRIu64, i, back);

		const struct order_dataset *d = &c->cursor.order[place.dataset];
		uint64_t k = place.epoch * d->windows +
			     order_unwindow(d, c->cursor.seed, place.epoch, place.window);

		PROVE(c->p, k < counts[place.dataset] && !seen[at[place.dataset] + k],
			"ordinal %" PRIu64 " of dataset %u, of %" PRIu64 ", at %" PRIu64, k,
			place.dataset, counts[place.dataset], i);
		seen[at[place.dataset] + k] = 1;
	}
	free(seen);
	atomic_fetch_add(&c->p->sums->positions, total);
}

/* The inverse: looks up random ordinals, also some that this run never serves. Exactly those that
 * are served before @total are found there. */
static void look_for_some(const struct prove_chain *c, uint64_t total, const uint64_t *counts)
{
	struct order order = prove_order(&c->history, &c->cursor);

	for (unsigned i = 0; i < ASKED; i++) {
		struct order_place place = {.dataset = (uint32_t)rng_below(
						    &c->p->rng, c->cursor.datasets)},
				   found;
		const struct order_dataset *d = &c->cursor.order[place.dataset];
		uint64_t k = rng_below(&c->p->rng, counts[place.dataset] + 2 * LIMIT_BLOCK), at = 0;

		place.epoch = k / d->windows;
		place.window = order_window(d, c->cursor.seed, place.epoch, k % d->windows);

		bool served = order_when(&order, &place, &at);

		PROVE(c->p, (served && at < total) == (k < counts[place.dataset]),
			"ordinal %" PRIu64 " of dataset %u, which serves %" PRIu64
			" before %" PRIu64 ", is found%s, at %" PRIu64,
			k, place.dataset, counts[place.dataset], total, served ? "" : " nowhere",
			at);
		PROVE(c->p, !served || (order_at(&order, at, &found) && prove_same(&found, &place)),
			"ordinal %" PRIu64 " of dataset %u is not at %" PRIu64, k, place.dataset,
			at);
	}
}

static void whole_epochs(struct prove *p, struct prove_chain *c)
{
	struct cursor identity = {.epochs = 1 + rng_below(&p->rng, 5)};
	uint64_t counts[LIMIT_DATASETS];

	prove_chain_begin(c, p, &identity, SMALL);
	for (uint32_t d = 0; d < c->cursor.datasets; d++)
		counts[d] = c->cursor.order[d].windows * identity.epochs;
	look_at_all(c, cursor_end(&c->cursor), counts);
	look_for_some(c, cursor_end(&c->cursor), counts);
}

static void run_orders(struct prove *p)
{
	uint64_t total = (1 + rng_below(&p->rng, BLOCKS)) * LIMIT_BLOCK;
	uint64_t counts[LIMIT_DATASETS];
	struct prove_chain c;

	if (p->number % 8 == 0) {
		whole_epochs(p, &c);
	} else {
		prove_chain_begin(&c, p, &(struct cursor){0}, SMALL);
		while (c.cursor.next < total) {
			prove_chain_edit(&c, rng_below(&p->rng, 3) == 0);
			prove_chain_move(&c, c.cursor.next + prove_log(&p->rng, 11));
			prove_remember(p, &c.history, &c.cursor);
			prove_chain_save(&c);
		}
		counts_at(&c, total, counts);
		look_at_all(&c, total, counts);
		look_for_some(&c, total, counts);
	}
	atomic_fetch_add(&p->sums->cases, 1);
	prove_chain_free(&c);
}

const struct prove_part prove_orders = {
	.name = "orders",
	.what = "every position of short runs: when(at(i)) = i, ordinals without gap or repeat",
	.units = UINT64_MAX,
	.brief_units = 250,
	.timed = true,
	.run = run_orders,
};
