/*
 * A run of 10⁹ samples with another mix from every block of 1024 on (sometimes after two or three),
 * among 2 to 1000 datasets. At each mix it checks the segment that ends there:
 *
 *   - each dataset's count is within ⌈log2 D⌉ samples of its share, ½·⌈log2 D⌉ in the first
 * segment; D counts the padded list
 *   - ordinals continue those of the segment before, and sum to the positions
 *   - the cursor that announces the next mix has at most LIMIT_CURSOR_BYTES
 *
 * Of each segment it checks a position: its ordinal is in the segment's range, and its window is
 * found there. `orders` checks every position.
 */
#include "tests/prove/prove.h"

typedef unsigned __int128 u128;

/* The long ones are first, so that all processes end at about the same time. */
static const struct {
	uint32_t datasets;
	uint64_t samples, brief;
} sizes[] = {
	{64, 1000000000, 4000000},
	{1000, 60000000, 400000},
	{7, 1000000000, 10000000},
	{2, 1000000000, 10000000},
	{3, 1000000000, 10000000},
	{1024, 10000000, 100000},
};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

struct run {
	const struct prove *p;
	struct cursor cursor;
	double *weights;
	uint64_t positions;
};

static unsigned log2_of(uint32_t padded)
{
	unsigned bits = 0;

	while (padded >> bits > 1)
		bits++;
	return bits;
}

/* Segment @now served [now->start, then->start). Checks that each dataset got its share. */
static void check_counts(
	struct run *run, const struct order_segment *now, const struct order_segment *then)
{
	uint64_t length = then->start - now->start, whole = now->prefix[now->padded], sum = 0;
	unsigned bits = log2_of(now->padded);
	bool first = now->start == 0;

	for (uint32_t d = 0; d < now->datasets; d++) {
		uint64_t n = then->base[d] - now->base[d];
		u128 served = (u128)n * whole, share = (u128)length * now->units[d];
		u128 off = served > share ? served - share : share - served;

		PROVE(run->p, then->base[d] >= now->base[d] && n <= length,
			"dataset %u of %u: its ordinals go back from %" PRIu64 " to %" PRIu64
			" at %" PRIu64,
			d, now->datasets, now->base[d], then->base[d], then->start);
		PROVE(run->p, (first ? 2 * off : off) <= (u128)bits * whole,
			"dataset %u of %u has %" PRIu64 " of %" PRIu64 " samples from %" PRIu64
			" on, with %" PRIu64 " of %" PRIu64 " units",
			d, now->datasets, n, length, now->start, now->units[d], whole);
		PROVE(run->p, now->units[d] > 0 || n == 0, "dataset %u is served without a weight",
			d);
		sum += then->base[d];
	}
	PROVE(run->p, sum == then->start, "%" PRIu64 " samples before %" PRIu64, sum, then->start);
}

/* The ordinal at @position belongs to the current segment, and is found at @position. */
static void look_at(struct run *run, const struct order_segment *then, uint64_t position)
{
	const struct cursor *c = &run->cursor;
	const struct order_segment *now = c->segment[0];
	struct order order = cursor_order(c);
	struct order_place place;
	uint64_t back = 0;

	PROVE(run->p, order_at(&order, position, &place), "nothing at %" PRIu64, position);
	PROVE(run->p, order_when(&order, &place, &back) && back == position,
		"the window of %" PRIu64 " is found at %" PRIu64, position, back);

	const struct order_dataset *d = &c->order[place.dataset];
	uint64_t k =
		place.epoch * d->windows + order_unwindow(d, c->seed, place.epoch, place.window);

	PROVE(run->p, k >= now->base[place.dataset] && k < then->base[place.dataset],
		"ordinal %" PRIu64 " of dataset %u at %" PRIu64 " is not in [%" PRIu64 ", %" PRIu64
		")",
		k, place.dataset, position, now->base[place.dataset], then->base[place.dataset]);
	run->positions++;
}

/* Makes a mix that is a little different from the last one, or a new one. */
static void change_weights(struct run *run, struct rng *rng)
{
	uint64_t kind = rng_below(rng, 4);

	if (kind == 0)
		return;
	if (kind == 1)
		run->weights[rng_below(rng, run->cursor.datasets)] += 1e-6;
	else
		prove_weights(rng, &run->cursor, run->weights);
}

static void next_mix(struct run *run, struct rng *rng, uint64_t number)
{
	struct cursor *c = &run->cursor;
	uint64_t at = cursor_mix_at(c) +
		      (rng_below(rng, 16) == 0 ? LIMIT_BLOCK * (1 + rng_below(rng, 2)) : 0);
	struct fault fault;

	change_weights(run, rng);
	PROVE(run->p, cursor_mix(c, at, run->weights, &fault), "%s: %s", fault.field, fault.text);
	PROVE(run->p, c->segments == 2 && c->segment[1]->start == at,
		"the mix is not from %" PRIu64 " on", at);
	if (number % 16 == 0 || c->datasets <= 8)
		prove_bytes(run->p, c);
	check_counts(run, c->segment[0], c->segment[1]);
	look_at(run, c->segment[1],
		c->segment[0]->start + rng_below(rng, at - c->segment[0]->start));
	PROVE(run->p, cursor_seek(c, at, &fault) && c->segments == 1, "%s: %s", fault.field,
		fault.text);
}

static void begin(struct run *run, struct prove *p, uint32_t datasets)
{
	struct cursor_source *sources = prove_memory(p, datasets, sizeof(*sources));
	char(*names)[16] = prove_memory(p, datasets, sizeof(*names));
	struct cursor identity = {.stream = "train", .seed = p->seed, .seq_len = 1, .stride = 1};
	struct fault fault;

	run->p = p;
	run->weights = prove_memory(p, datasets, sizeof(*run->weights));
	for (uint32_t d = 0; d < datasets; d++) {
		sources[d] = prove_source(&p->rng, d, UINT64_C(1) << 40, names[d]);
		sources[d].weight = run->weights[d] = 1 + (double)rng_below(&p->rng, 1000);
	}
	PROVE(p, cursor_begin(&run->cursor, &identity, sources, datasets, NULL, 0, &fault),
		"%s: %s", fault.field, fault.text);
	free(sources);
	free(names);
}

static void run_mixes(struct prove *p)
{
	uint64_t samples = p->brief ? sizes[p->number].brief : sizes[p->number].samples, number = 0;
	struct run run = {0};

	begin(&run, p, sizes[p->number].datasets);
	while (run.cursor.next < samples)
		next_mix(&run, &p->rng, number++);
	atomic_fetch_add(&p->sums->cases, number);
	atomic_fetch_add(&p->sums->positions, run.positions);
	cursor_free(&run.cursor);
	free(run.weights);
}

const struct prove_part prove_mixes = {
	.name = "mixes",
	.what = "10⁹ samples of 2, 3, 7 and 64 datasets, fewer of 1000, another mix in every "
		"block: counts "
		"as promised",
	.units = SIZES,
	.brief_units = SIZES,
	.run = run_mixes,
};
