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

#include "daemon/engine/feed.h"

enum {
	WORLD = 16,
	MICRO = 4,
	BATCHES = 2,
	PHASES = 3,
	SLOTS = 4,
	LAST = 2 * WORLD * MICRO * 4,
	BRIEF_WORLD = 4,
	BRIEF_MICRO = 3
};

/* ---- feeds as the engine plans them, one at a time, on a ring in plain memory ---- */

struct rig {
	const struct prove *p;
	struct ring ring;
	void *meta, *data;
	uint32_t datasets;
	struct table *table;	    /* [datasets] of one shard each */
	uint64_t *tokens, *first;   /* [datasets], [2 × datasets] */
	struct feed_source *source; /* [datasets] */
};

static struct rig *rig_new(const struct prove *p, const struct cursor *cursor, uint32_t micro_batch)
{
	struct rig *f = prove_memory(p, 1, sizeof(*f));
	struct ring_geometry g;
	struct fault fault;

	f->p = p;
	f->datasets = cursor->datasets;
	f->table = prove_memory(p, f->datasets, sizeof(*f->table));
	f->tokens = prove_memory(p, f->datasets, sizeof(*f->tokens));
	f->first = prove_memory(p, f->datasets, 2 * sizeof(*f->first));
	f->source = prove_memory(p, f->datasets, sizeof(*f->source));
	for (uint32_t d = 0; d < f->datasets; d++) {
		f->table[d] = (struct table){.window_tokens = 1,
			.stride = 1,
			.shards = 1,
			.tokens = &f->tokens[d],
			.first_window = &f->first[2 * d]};
		f->tokens[d] = order_path_windows(&cursor->order[d]);
		table_number(&f->table[d]);
		f->source[d].table = &f->table[d];
	}
	PROVE(p, ring_geometry(&g, SLOTS, micro_batch, 1, 2, 0, &fault), "%s", fault.text);
	f->meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	f->data = aligned_alloc(RING_PAGE, g.data_bytes);
	PROVE(p, f->meta && f->data, "memory");
	memset(f->meta, 0, g.meta_bytes);
	memset(f->data, 0, g.data_bytes);
	ring_format(&f->ring, &g, f->meta, f->data);
	return f;
}

static void rig_free(struct rig *f)
{
	free(f->meta);
	free(f->data);
	free(f->table);
	free(f->tokens);
	free(f->first);
	free(f->source);
	free(f);
}

/* ---- walks ---- */

struct leg {
	uint64_t world;
	uint32_t micro_batch;
	uint64_t batches;
};

struct walk {
	const struct prove *p;
	struct rig *rig[MICRO + 1];
	uint64_t world_most;
	uint32_t micro_batch_most;
	struct order_place truth[LAST]; /* the windows of the order */
	uint64_t chains, positions;
	struct leg leg[PHASES];
	unsigned phase;
	/* the present phase */
	uint64_t from[SLOTS + 1]; /* the cursor before each step */
	uint64_t steps;
	uint64_t left[SLOTS]; /* positions of each step that no rank has taken yet */
	uint8_t seen[LAST];
};

static void row_seen(struct walk *w, uint64_t rank, uint64_t batch, uint32_t row, uint64_t position,
	const struct order_place *place)
{
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

/* Checks the rows of slot @s. */
static void check_slot(struct walk *w, const struct rig *f, const struct feed *feed, uint64_t s)
{
	const struct ring_slot *slot = ring_slot(&f->ring, s);
	const struct ring_row *rows = ring_rows(&f->ring, s);

	for (uint32_t r = 0; r < f->ring.geometry.rows; r++) {
		bool valid = r < slot->rows_valid;
		struct order_place place = {.dataset = rows[r].dataset,
			.epoch = rows[r].epoch,
			.window = rows[r].window};

		PROVE(f->p, valid == (rows[r].position != RING_PADDING),
			"row %u of slot %" PRIu64 " of rank %" PRIu64 ": rows_valid is %u", r, s,
			feed->options.rank, slot->rows_valid);
		PROVE(f->p, !valid || rows[r].position == slot->position + r,
			"row %u of slot %" PRIu64 " of rank %" PRIu64 " is at %" PRIu64
			", its slot at %" PRIu64,
			r, s, feed->options.rank, rows[r].position, slot->position);
		PROVE(f->p, !valid || rows[r].offset == rows[r].window, "the table moved a window");
		row_seen(w, feed->options.rank, s, r, rows[r].position, valid ? &place : NULL);
	}
}

/* Plans micro-batches of a rank from @cursor on. Returns their number, @batches at most. */
static uint64_t plan_feed(struct walk *w, const struct cursor *cursor, uint64_t rank,
	uint64_t world, uint64_t batches)
{
	struct rig *f = w->rig[w->leg[w->phase].micro_batch];
	struct feed_options options = {
		.rank = rank, .world = world, .ring = f->ring, .source = f->source};
	struct feed *feed = feed_new(cursor, &options);
	struct engine_action read;
	uint64_t planned;

	PROVE(f->p, feed && cursor->datasets == f->datasets && batches <= SLOTS, "memory");
	while (feed->planned < batches && feed_room(feed) == FEED_ROOM) {
		if (feed_plan(feed, &read)) { /* as if read at once */
			feed_read_ended(feed, (uint32_t)read.tag);
			feed->left[(uint32_t)read.tag / f->ring.geometry.rows]--;
		}
		feed_publish(feed);
	}
	planned = feed->planned;
	PROVE(f->p, planned == batches || feed_room(feed) == FEED_ENDED,
		"rank %" PRIu64 " stops after %" PRIu64 " micro-batches", rank, planned);
	for (uint64_t s = 0; s < planned; s++)
		check_slot(w, f, feed, s);
	feed_free(feed);
	return planned;
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
		uint64_t batches = plan_feed(w, cursor, r, leg->world, leg->batches);

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

		leg->batches = SLOTS; /* it ends earlier */
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
		w->rig[micro_batch] = rig_new(p, &c, micro_batch);
	go(w, &c);
	atomic_fetch_add(&p->sums->cases, w->chains);
	atomic_fetch_add(&p->sums->positions, w->positions);
	for (uint32_t micro_batch = 1; micro_batch <= w->micro_batch_most; micro_batch++)
		rig_free(w->rig[micro_batch]);
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
