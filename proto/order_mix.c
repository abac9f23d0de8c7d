/* Between datasets: weights, segments, and the tree of exact fractions that mixes their samples. */
#include "proto/order.h"

#include "proto/order_private.h"
#include "proto/phrases.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

struct fraction {
	double part;
	uint32_t index;
};

static int by_larger_part(const void *a, const void *b)
{
	const struct fraction *x = a, *y = b;

	if (x->part != y->part)
		return x->part < y->part ? 1 : -1;
	return x->index < y->index ? -1 : 1;
}

void order_give_rest(uint64_t *units, const double *part, uint32_t n)
{
	struct fraction fractions[LIMIT_DATASETS];
	uint64_t left = ORDER_UNITS;

	assert(n > 0 && n <= LIMIT_DATASETS);
	for (uint32_t d = 0; d < n; d++) {
		left -= units[d];
		fractions[d] = (struct fraction){part[d], d};
	}
	qsort(fractions, n, sizeof(fractions[0]), by_larger_part);
	assert(left <= n);
	for (uint32_t i = 0; i < left; i++)
		units[fractions[i].index]++;
}

static bool refuse_weight(struct fault *fault, uint32_t d, const double *weights, bool tiny)
{
	if (tiny)
		fault_set(fault, FAULT_ARGUMENT, "weight",
			"%g is below 2^-32 of the sum, so it is never served; must be larger, or 0",
			weights[d]);
	else
		fault_set(
			fault, FAULT_ARGUMENT, "weight", "%g; must be " PHRASE_WEIGHT, weights[d]);
	fault->index = (int)d;
	return false;
}

bool order_units(const double *weights, uint32_t n, uint64_t *units, struct fault *fault)
{
	double part[LIMIT_DATASETS], sum = 0;

	assert(n > 0 && n <= LIMIT_DATASETS);
	for (uint32_t d = 0; d < n; d++) {
		if (!isfinite(weights[d]) || weights[d] < 0)
			return refuse_weight(fault, d, weights, false);
		sum += weights[d];
	}
	if (!isfinite(sum) || sum <= 0)
		return fault_set(fault, FAULT_ARGUMENT, "weights",
			"their sum is not a finite number above 0; " PHRASE_WEIGHTS);
	for (uint32_t d = 0; d < n; d++) {
		double share = weights[d] / sum * 4294967296.0, whole = floor(share);

		units[d] = (uint64_t)whole;
		part[d] = share - whole;
	}
	order_give_rest(units, part, n);
	for (uint32_t d = 0; d < n; d++)
		if (weights[d] > 0 && units[d] == 0)
			return refuse_weight(fault, d, weights, true);
	return true;
}

/* ---- segments ---- */

uint32_t order_padded(uint32_t datasets)
{
	assert(datasets > 0 && datasets <= LIMIT_DATASETS);
	uint32_t padded = 1;

	while (padded < datasets)
		padded *= 2;
	assert(padded >= datasets && padded < 2 * datasets);
	return padded;
}

static uint64_t node_units(const struct order_segment *s, uint32_t lo, uint32_t hi)
{
	return s->prefix[hi] - s->prefix[lo];
}

/* Is every phase below its node's units, or 0 if these are 0? */
static bool phases_fit(const struct order_segment *s)
{
	assert(s->padded > 0 && (s->padded & (s->padded - 1)) == 0);
	for (uint32_t width = 2; width <= s->padded; width *= 2)
		for (uint32_t lo = 0; lo < s->padded; lo += width) {
			uint64_t w = node_units(s, lo, lo + width);

			if (w > 0 ? s->phase[lo + width / 2] >= w : s->phase[lo + width / 2] != 0)
				return false;
		}
	return true;
}

void order_segment_check(const struct order_segment *s)
{
	uint32_t mixed = 0;

	assert(s->start % LIMIT_BLOCK == 0);
	assert(s->datasets > 0 && s->datasets <= LIMIT_DATASETS);
	assert(s->padded == order_padded(s->datasets));
	assert(s->units == (const uint64_t *)(s + 1));
	assert(s->base == s->units + s->datasets);
	assert(s->phase == s->base + s->datasets);
	assert(s->prefix == s->phase + s->padded);
	assert(s->part == s->prefix + s->padded + 1);
	assert(s->part_phase == s->part + s->padded);
	assert(s->prefix[0] == 0 && s->prefix[s->padded] > 0);
	for (uint32_t d = 0; d < s->padded; d++) {
		uint64_t units = d < s->datasets ? s->units[d] : 0;

		assert(s->prefix[d + 1] - s->prefix[d] == units);
		assert(s->prefix[d + 1] >= s->prefix[d]);
		mixed += units > 0;
	}
	assert(s->mixed == mixed && mixed > 0);
	assert(phases_fit(s));
}

static bool segment_valid(uint64_t start, const uint64_t *units, uint32_t datasets)
{
	u128 sum = 0;

	if (datasets == 0 || datasets > LIMIT_DATASETS || start % LIMIT_BLOCK != 0)
		return false;
	for (uint32_t d = 0; d < datasets; d++)
		sum += units[d];
	return sum > 0 && sum <= UINT64_MAX;
}

static size_t segment_bytes(uint32_t datasets, uint32_t padded)
{
	return sizeof(struct order_segment) +
	       (2 * (size_t)datasets + 4 * (size_t)padded + 1) * sizeof(uint64_t);
}

static void segment_arrays(struct order_segment *s)
{
	s->units = (uint64_t *)(s + 1);
	s->base = s->units + s->datasets;
	s->phase = s->base + s->datasets;
	s->prefix = s->phase + s->padded;
	s->part = s->prefix + s->padded + 1;
	s->part_phase = s->part + s->padded;
}

/* @x / @w in 2^-64, rounded down; what does not fit 64 bits is the largest number that does. */
static uint64_t part_of(uint64_t x, uint64_t w)
{
	return x < w ? (uint64_t)(((u128)x << 64) / w) : UINT64_MAX;
}

/* Derives the parts, once all else is known. */
static void segment_ready(struct order_segment *s)
{
	for (uint32_t width = 2; width <= s->padded; width *= 2)
		for (uint32_t lo = 0; lo < s->padded; lo += width) {
			uint32_t mid = lo + width / 2;
			uint64_t w = node_units(s, lo, lo + width);

			s->part[mid] = w > 0 ? part_of(node_units(s, lo, mid), w) : 0;
			s->part_phase[mid] = w > 0 ? part_of(s->phase[mid], w) : 0;
		}
	order_segment_check(s);
}

/* NULL: out of memory, or not valid. */
static struct order_segment *segment_new(uint64_t start, const uint64_t *units, uint32_t datasets)
{
	assert(units);
	if (!segment_valid(start, units, datasets))
		return NULL;

	uint32_t padded = order_padded(datasets);
	struct order_segment *s = calloc(1, segment_bytes(datasets, padded));

	if (!s)
		return NULL;
	s->start = start;
	s->datasets = datasets;
	s->padded = padded;
	segment_arrays(s);
	memcpy(s->units, units, datasets * sizeof(*units));
	for (uint32_t d = 0; d < padded; d++) {
		uint64_t u = d < datasets ? units[d] : 0;

		s->prefix[d + 1] = s->prefix[d] + u;
		s->mixed += u > 0;
	}
	return s;
}

struct order_segment *order_segment_copy(const struct order_segment *segment)
{
	order_segment_check(segment);
	size_t bytes = segment_bytes(segment->datasets, segment->padded);
	struct order_segment *s = malloc(bytes);

	if (!s)
		return NULL;
	memcpy(s, segment, bytes);
	segment_arrays(s);
	order_segment_check(s);
	return s;
}

void order_segment_free(struct order_segment *segment)
{
	free(segment);
}

struct order_segment *order_segment_first(const uint64_t *units, uint32_t datasets)
{
	struct order_segment *s = segment_new(0, units, datasets);

	if (!s)
		return NULL;
	for (uint32_t width = 2; width <= s->padded; width *= 2)
		for (uint32_t lo = 0; lo < s->padded; lo += width)
			s->phase[lo + width / 2] = node_units(s, lo, lo + width) / 2;
	segment_ready(s);
	return s;
}

struct order_segment *order_segment_load(uint64_t start, const uint64_t *units,
	const uint64_t *base, const uint64_t *phase, uint32_t datasets, struct fault *fault)
{
	struct order_segment *s;

	if (!segment_valid(start, units, datasets)) {
		fault_set(fault, FAULT_CURSOR, "start",
			"must be a multiple of %d, and units must sum to 1 to 2^64 - 1",
			LIMIT_BLOCK);
		return NULL;
	}
	s = segment_new(start, units, datasets);
	if (!s) {
		fault_memory(fault);
		return NULL;
	}
	memcpy(s->base, base, datasets * sizeof(*base));
	memcpy(s->phase, phase, s->padded * sizeof(*phase));
	if (phases_fit(s)) {
		segment_ready(s);
		return s;
	}
	fault_set(fault, FAULT_CURSOR, "phase", "must be below the units of its node");
	order_segment_free(s);
	return NULL;
}

/* Returns how many of the first @j samples of node [lo,hi) go left, and the remainder in *@rest. */
static uint64_t node_left(const struct order_segment *s, uint32_t lo, uint32_t mid, uint32_t hi,
	uint64_t j, uint64_t *rest)
{
	uint64_t w = node_units(s, lo, hi);
	u128 product = (u128)j * node_units(s, lo, mid) + s->phase[mid];

	/* At most j + 1, so 64 bits are enough. One division of 128 bits; the rest needs none. */
	uint64_t left = (uint64_t)(product / w);

	*rest = (uint64_t)product - left * w;
	return left;
}

/* Carries the counts and roundings of @before, whose node [lo,hi) has served @j samples, into
 * @next. */
static void segment_carry(const struct order_segment *before, struct order_segment *next,
	uint32_t lo, uint32_t hi, uint64_t j)
{
	assert(lo < hi && hi <= before->padded && hi <= next->padded);
	if (node_units(before, lo, hi) == 0)
		return;
	if (hi - lo == 1) {
		next->base[lo] += j;
		return;
	}
	uint32_t mid = lo + (hi - lo) / 2;
	uint64_t w = node_units(before, lo, hi), rest;
	uint64_t left = node_left(before, lo, mid, hi, j, &rest);

	assert(left <= j && rest < w);
	next->phase[mid] = (uint64_t)((u128)rest * node_units(next, lo, hi) / w);
	segment_carry(before, next, lo, mid, left);
	segment_carry(before, next, mid, hi, j - left);
}

struct order_segment *order_segment_next(const struct order_segment *before, uint64_t start,
	const uint64_t *units, uint32_t datasets)
{
	if (datasets < before->datasets || start <= before->start)
		return NULL;
	struct order_segment *s = segment_new(start, units, datasets);

	if (!s)
		return NULL;
	memcpy(s->base, before->base, before->datasets * sizeof(*s->base));
	for (uint32_t width = 2; width <= s->padded; width *= 2)
		for (uint32_t lo = 0; lo < s->padded; lo += width)
			s->phase[lo + width / 2] = node_units(s, lo, lo + width) / 2;
	segment_carry(before, s, 0, before->padded, start - before->start);
	segment_ready(s);
	return s;
}

/* Does the @j-th sample of node [lo,hi) go left? *@left: how many before it did. */
static __attribute__((noinline)) bool goes_left(const struct order_segment *s, uint32_t lo,
	uint32_t mid, uint32_t hi, uint64_t j, uint64_t *left)
{
	uint64_t wr = node_units(s, mid, hi), rest;

	*left = node_left(s, lo, mid, hi, j, &rest);
	return rest >= wr;
}

/*
 * A step down the tree is a product and no division: its high word counts the samples on the left,
 * and its low word, the fraction, tells where sample @j goes. Both parts are rounded down, so the
 * fraction is short by at most j + 2. Where that could matter, the step divides, which is rare
 * while j is far below 2^64. There is no other branch, as nobody can predict where a sample goes.
 */
void order_split(const struct order_segment *s, uint64_t j, uint32_t *dataset, uint64_t *ordinal)
{
	uint32_t lo = 0;

	for (uint32_t half = s->padded / 2; half > 0; half /= 2) {
		uint32_t mid = lo + half;
		u128 product = (u128)j * s->part[mid] + s->part_phase[mid];
		uint64_t left = (uint64_t)(product >> 64), low = (uint64_t)product, sum;
		uint64_t right = (uint64_t)__builtin_add_overflow(low, s->part[mid], &sum) - 1;

		if (__builtin_expect((~low <= j) | (~sum <= j), 0))
			right = (uint64_t)goes_left(s, lo, mid, mid + half, j, &left) - 1;
		lo += half & (uint32_t)right;
		j = left + ((j - 2 * left) & right);
	}
	assert(lo < s->datasets && s->units[lo] > 0);
	*dataset = lo;
	*ordinal = s->base[lo] + j;
}

bool order_join(const struct order_segment *s, uint32_t dataset, uint64_t ordinal, uint64_t *j)
{
	if (dataset >= s->datasets || s->units[dataset] == 0 || ordinal < s->base[dataset])
		return false;
	u128 at = ordinal - s->base[dataset];

	for (uint32_t width = 2; width <= s->padded; width *= 2) {
		uint32_t lo = dataset / width * width, mid = lo + width / 2, hi = lo + width;
		uint64_t w = node_units(s, lo, hi), wl = node_units(s, lo, mid),
			 phase = s->phase[mid];

		if (dataset < mid)
			at = ((at + 1) * w - phase + wl - 1) / wl - 1;
		else
			at = (at * w + phase) / (w - wl);
		if (at > UINT64_MAX) /* it only grows on the way up */
			return false;
	}
	*j = (uint64_t)at;
	return true;
}
