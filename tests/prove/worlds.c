/*
 * All rescales W1→W2→W3 with worlds up to 16 and micro-batches up to 4. The first two phases have
 * one or two micro-batches; the third goes to the end of the stream, which may be anywhere in its
 * last step.
 *
 * Each phase is checked by itself, and the next one begins at its cursor: it covers exactly the
 * positions from the old cursor to the new one, each once, step by step, and their windows are
 * those of the order. So samples do not depend on the world.
 */
#include "tests/prove/prove.h"

enum {
	WORLD = 16,
	MICRO = 4,
	BATCHES = 2,
	PHASES = 3,
	LAST = 2 * WORLD * MICRO * 4,
	BRIEF_WORLD = 4,
	BRIEF_MICRO = 3
};

struct leg {
	uint64_t world;
	uint32_t micro_batch;
	uint64_t batches;
};

struct walk {
	const struct prove *p;
	struct prove_feeds *feeds[MICRO + 1];
	uint64_t world_most;
	uint32_t micro_batch_most;
	struct order_place truth[LAST]; /* the windows of the order */
	uint64_t chains, positions;
	struct leg leg[PHASES];
	unsigned phase;
	/* the present phase */
	uint64_t from[PROVE_SLOTS + 1]; /* the cursor before each step */
	uint64_t steps;
	uint64_t left[PROVE_SLOTS]; /* positions of each step that no rank has taken yet */
	uint8_t seen[LAST];
};

static void row_seen(void *context, uint64_t rank, uint64_t batch, uint32_t row, uint64_t position,
	const struct order_place *place)
{
	struct walk *w = context;

	if (!place) {
		/* Padding is allowed only past the end of the step. */
		uint64_t would_be = w->from[batch] + rank * w->leg[w->phase].micro_batch + row;

		PROVE(w->p, would_be >= w->from[batch + 1],
			"rank %" PRIu64 " has padding for %" PRIu64, rank, would_be);
		return;
	}
	PROVE(w->p, position >= w->from[batch] && position < w->from[batch + 1],
		"rank %" PRIu64 " has %" PRIu64 " in step [%" PRIu64 ", %" PRIu64 ")", rank,
		position, w->from[batch], w->from[batch + 1]);
	PROVE(w->p, !w->seen[position], "rank %" PRIu64 " repeats %" PRIu64, rank, position);
	PROVE(w->p, prove_same(place, &w->truth[position]),
		"rank %" PRIu64 " has another window at %" PRIu64, rank, position);
	w->seen[position] = 1;
	w->left[batch]--;
}

/* Runs all ranks of the present leg from @cursor on. Returns the cursor's next position. */
static uint64_t all_ranks(struct walk *w, const struct cursor *cursor)
{
	struct leg *leg = &w->leg[w->phase];
	uint64_t end = cursor_end(cursor), step = leg->world * leg->micro_batch;

	w->steps = 0;
	w->from[0] = cursor->next;
	while (w->steps < leg->batches && w->from[w->steps] < end) {
		w->from[w->steps + 1] = order_rank_next(w->from[w->steps], step, end);
		w->left[w->steps] = w->from[w->steps + 1] - w->from[w->steps];
		w->steps++;
	}
	for (uint64_t r = 0; r < leg->world; r++) {
		uint64_t batches = prove_feed(w->feeds[leg->micro_batch], cursor, r, leg->world,
			leg->batches, row_seen, w);

		PROVE(w->p, batches == w->steps,
			"rank %" PRIu64 " has %" PRIu64 " micro-batches of %" PRIu64, r, batches,
			w->steps);
	}
	for (uint64_t s = 0; s < w->steps; s++)
		PROVE(w->p, w->left[s] == 0,
			"step %" PRIu64 " from %" PRIu64 ": no rank took %" PRIu64 " positions", s,
			w->from[s], w->left[s]);
	memset(w->seen + cursor->next, 0, w->from[w->steps] - cursor->next);
	w->positions += w->from[w->steps] - cursor->next;
	return w->from[w->steps];
}

static void go_on(struct walk *w, const struct cursor *at, uint64_t next);

/* One leg from @start on, and all legs that may follow. */
static void go(struct walk *w, const struct cursor *start)
{
	struct leg *leg = &w->leg[w->phase];
	struct cursor finite = *start; /* shares the memory of @start */

	if (w->phase + 1 == PHASES) {
		uint64_t step = leg->world * leg->micro_batch;

		leg->batches = PROVE_SLOTS; /* it ends earlier */
		finite.samples = start->next + 1 + order_derive(w->chains, step) % (2 * step);
		PROVE(w->p, all_ranks(w, &finite) == finite.samples, "the end is not at %" PRIu64,
			finite.samples);
		w->chains++;
		return;
	}
	go_on(w, start, all_ranks(w, start));
}

/* Runs all possible next legs, from a cursor that went through a checkpoint. */
static void go_on(struct walk *w, const struct cursor *at, uint64_t next)
{
	struct fault fault;
	struct cursor c;

	PROVE(w->p, cursor_copy(&c, at) && cursor_seek(&c, next, &fault), "no cursor at %" PRIu64,
		next);
	prove_bytes(w->p, &c);
	w->phase++;
	for (uint64_t world = 1; world <= w->world_most; world++)
		for (uint32_t micro_batch = 1; micro_batch <= w->micro_batch_most; micro_batch++)
			for (uint64_t n = 1; n <= (w->phase + 1 == PHASES ? 1 : BATCHES); n++) {
				w->leg[w->phase] = (struct leg){world, micro_batch, n};
				go(w, &c);
			}
	w->phase--;
	cursor_free(&c);
}

static void begin(const struct prove *p, struct cursor *c)
{
	struct cursor_source sources[] = {
		{"web", .7, 1000, 1, 1, 1, ORDER_GLOBAL, false, 0, 0, 0},
		{"code", .3, 150, 2, 4, 2, ORDER_BLOCK, false, 0, 0, 0},
	};
	struct cursor identity = {.stream = "train", .seed = p->seed, .seq_len = 1, .stride = 1};
	struct fault fault;

	PROVE(p, cursor_begin(c, &identity, sources, 2, NULL, 0, &fault), "%s: %s", fault.field,
		fault.text);
}

/* A unit is a first leg: world, micro-batch and number of batches. */
static void run_worlds(struct prove *p)
{
	struct walk *w = prove_memory(p, 1, sizeof(*w));
	uint64_t n = p->number;
	struct cursor c;

	w->p = p;
	w->world_most = p->brief ? BRIEF_WORLD : WORLD;
	w->micro_batch_most = p->brief ? BRIEF_MICRO : MICRO;
	w->leg[0].batches = 1 + n % BATCHES;
	w->leg[0].micro_batch = 1 + (uint32_t)(n / BATCHES % w->micro_batch_most);
	w->leg[0].world =
		w->world_most - n / BATCHES / w->micro_batch_most; /* the large worlds first */
	begin(p, &c);

	struct order order = cursor_order(&c);

	for (uint64_t i = 0; i < LAST; i++)
		PROVE(p, order_at(&order, i, &w->truth[i]), "position %" PRIu64, i);
	for (uint32_t micro_batch = 1; micro_batch <= w->micro_batch_most; micro_batch++)
		w->feeds[micro_batch] = prove_feeds_new(p, &c, micro_batch);
	go(w, &c);
	atomic_fetch_add(&p->sums->cases, w->chains);
	atomic_fetch_add(&p->sums->positions, w->positions);
	for (uint32_t micro_batch = 1; micro_batch <= w->micro_batch_most; micro_batch++)
		prove_feeds_free(w->feeds[micro_batch]);
	cursor_free(&c);
	free(w);
}

const struct prove_part prove_worlds = {
	.name = "worlds",
	.what = "every W1→W2→W3 ≤ 16, micro-batch ≤ 4: each position exactly once, by the engine's "
		"own feeds",
	.units = WORLD * MICRO * BATCHES,
	.brief_units = BRIEF_WORLD * BRIEF_MICRO * BATCHES,
	.run = run_worlds,
};
