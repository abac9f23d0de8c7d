/*
 * Whole orders: every position of a short run with many edits. Each position is found by its
 * window, and each dataset's ordinals are served without gap or repeat over all segments.
 */
#include "tests/prove/prove.h"

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
