#include "proto/order.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)
#define MUL_1  UINT64_C(0xBF58476D1CE4E5B9)
#define MUL_2  UINT64_C(0x94D049BB133111EB)

enum { KEY_MIX = 1, KEY_SHUFFLE, KEY_BLOCK, KEY_TAIL, KEY_GROUP, KEY_SLIDE };

/* ---- hashing ---- */

uint64_t order_mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= MUL_1;
	x ^= x >> 27;
	x *= MUL_2;
	return x ^ x >> 31;
}

uint64_t order_derive_n(uint64_t seed, const uint64_t *values, size_t n)
{
	uint64_t h = order_mix64(seed + GOLDEN);

	for (size_t i = 0; i < n; i++)
		h = order_mix64((h ^ values[i]) + GOLDEN);
	return h;
}

uint64_t order_name_hash(const char *name, size_t n)
{
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001B3);
	return h;
}

uint64_t order_checksum(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = order_mix64(n + GOLDEN);

	for (; n > 0; p += 8) {
		size_t take = n < 8 ? n : 8;
		uint64_t word = 0;

		for (size_t i = 0; i < take; i++)
			word |= (uint64_t)p[i] << 8 * i;
		h = order_mix64((h ^ word) + GOLDEN);
		n -= take;
	}
	return h;
}

uint64_t order_digest_begin(uint64_t shards)
{
	return order_derive(0, shards);
}

uint64_t order_digest_add(uint64_t digest, const char *path, uint64_t tokens)
{
	return order_derive(digest, order_name_hash(path, strlen(path)), tokens);
}

/* ---- permute: a Feistel network over the two digits of x in mixed radix (b, a), walked until it
 * lands in [0, n) ---- */

struct feistel {
	uint64_t a, b;
	unsigned rounds;
	uint64_t key[16];
};

static uint64_t ceil_sqrt(uint64_t n)
{
	uint64_t r = (uint64_t)sqrt((double)n);

	/* A double has 53 bits: mend the last ones exactly. */
	while ((u128)r * r >= n && r > 0)
		r--;
	while ((u128)r * r < n)
		r++;
	return r;
}

static struct feistel feistel_make(uint64_t n, uint64_t key)
{
	struct feistel f = {.a = ceil_sqrt(n), .rounds = n < 64 ? 16 : 8};

	f.b = n / f.a + (n % f.a != 0);
	for (unsigned r = 0; r < f.rounds; r++)
		f.key[r] = order_mix64(key + GOLDEN * (r + 1));
	return f;
}

/* A pseudo-random number below @m from @v under key @k. */
static uint64_t feistel_round(uint64_t v, uint64_t k, uint64_t m)
{
	v ^= k;
	v *= MUL_1;
	v ^= v >> 32;
	v *= MUL_2;
	v ^= v >> 32;
	return (uint64_t)((u128)v * m >> 64);
}

static uint64_t add_mod(uint64_t x, uint64_t y, uint64_t m)
{
	x += y;
	return x >= m ? x - m : x;
}

static uint64_t sub_mod(uint64_t x, uint64_t y, uint64_t m)
{
	return x >= y ? x - y : x + m - y;
}

uint64_t order_permute(uint64_t n, uint64_t key, uint64_t x)
{
	assert(n > 0 && x < n);
	struct feistel f = feistel_make(n, key);

	do {
		uint64_t h = x / f.a, l = x % f.a;

		for (unsigned r = 0; r < f.rounds; r += 2) {
			h = add_mod(h, feistel_round(l, f.key[r], f.b), f.b);
			l = add_mod(l, feistel_round(h, f.key[r + 1], f.a), f.a);
		}
		x = h * f.a + l;
	} while (x >= n);
	return x;
}

uint64_t order_unpermute(uint64_t n, uint64_t key, uint64_t y)
{
	assert(n > 0 && y < n);
	struct feistel f = feistel_make(n, key);

	do {
		uint64_t h = y / f.a, l = y % f.a;

		for (unsigned r = f.rounds; r > 0; r -= 2) {
			l = sub_mod(l, feistel_round(h, f.key[r - 1], f.a), f.a);
			h = sub_mod(h, feistel_round(l, f.key[r - 2], f.b), f.b);
		}
		y = h * f.a + l;
	} while (y >= n);
	return y;
}

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

int order_units(const double *weights, uint32_t n, uint64_t *units)
{
	struct fraction fractions[LIMIT_DATASETS];
	uint64_t left = ORDER_UNITS;
	double sum = 0;

	assert(n > 0 && n <= LIMIT_DATASETS);
	for (uint32_t d = 0; d < n; d++) {
		if (!isfinite(weights[d]) || weights[d] < 0)
			return (int)d;
		sum += weights[d];
	}
	if (!isfinite(sum) || sum <= 0)
		return (int)n;
	for (uint32_t d = 0; d < n; d++) {
		double share = weights[d] / sum * 4294967296.0, whole = floor(share);

		units[d] = (uint64_t)whole;
		left -= units[d];
		fractions[d] = (struct fraction){share - whole, d};
	}
	qsort(fractions, n, sizeof(fractions[0]), by_larger_part);
	assert(left <= n);
	for (uint32_t i = 0; i < left; i++)
		units[fractions[i].index]++;
	for (uint32_t d = 0; d < n; d++)
		if (weights[d] > 0 && units[d] == 0)
			return (int)d;
	return -1;
}

/* ---- segments ---- */

uint32_t order_padded(uint32_t datasets)
{
	uint32_t padded = 1;

	while (padded < datasets)
		padded *= 2;
	return padded;
}

static uint64_t node_units(const struct order_segment *s, uint32_t lo, uint32_t hi)
{
	return s->prefix[hi] - s->prefix[lo];
}

static struct order_segment *segment_new(uint64_t start, const uint64_t *units, uint32_t datasets)
{
	uint32_t padded = order_padded(datasets);
	size_t words = 2 * (size_t)datasets + padded + padded + 1;
	struct order_segment *s;

	if (datasets == 0 || datasets > LIMIT_DATASETS || start % LIMIT_BLOCK != 0)
		return NULL;
	s = calloc(1, sizeof(*s) + words * sizeof(uint64_t));
	if (!s)
		return NULL;
	s->start = start;
	s->datasets = datasets;
	s->padded = padded;
	s->units = (uint64_t *)(s + 1);
	s->base = s->units + datasets;
	s->phase = s->base + datasets;
	s->prefix = s->phase + padded;
	memcpy(s->units, units, datasets * sizeof(*units));
	for (uint32_t d = 0; d < padded; d++) {
		uint64_t u = d < datasets ? units[d] : 0;

		if (s->prefix[d] + u < u) {
			free(s);
			return NULL;
		}
		s->prefix[d + 1] = s->prefix[d] + u;
		s->mixed += u > 0;
	}
	if (s->mixed == 0) {
		free(s);
		return NULL;
	}
	return s;
}

static size_t segment_bytes(const struct order_segment *s)
{
	return sizeof(*s) +
	       (2 * (size_t)s->datasets + 2 * (size_t)s->padded + 1) * sizeof(uint64_t);
}

struct order_segment *order_segment_copy(const struct order_segment *segment)
{
	struct order_segment *s = malloc(segment_bytes(segment));

	if (!s)
		return NULL;
	memcpy(s, segment, segment_bytes(segment));
	s->units = (uint64_t *)(s + 1);
	s->base = s->units + s->datasets;
	s->phase = s->base + s->datasets;
	s->prefix = s->phase + s->padded;
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
	return s;
}

struct order_segment *order_segment_load(uint64_t start, const uint64_t *units,
	const uint64_t *base, const uint64_t *phase, uint32_t datasets)
{
	struct order_segment *s = segment_new(start, units, datasets);

	if (!s)
		return NULL;
	memcpy(s->base, base, datasets * sizeof(*base));
	memcpy(s->phase, phase, s->padded * sizeof(*phase));
	for (uint32_t width = 2; width <= s->padded; width *= 2)
		for (uint32_t lo = 0; lo < s->padded; lo += width) {
			uint64_t w = node_units(s, lo, lo + width);

			if (w > 0 ? s->phase[lo + width / 2] >= w : s->phase[lo + width / 2] != 0) {
				free(s);
				return NULL;
			}
		}
	return s;
}

/* How many of the first @j samples of node [lo,hi) go left; @rest, if wanted, gets the rounding
 * that is left.
 */
static uint64_t node_left(const struct order_segment *s, uint32_t lo, uint32_t mid, uint32_t hi,
	uint64_t j, uint64_t *rest)
{
	uint64_t w = node_units(s, lo, hi);
	u128 product = (u128)j * node_units(s, lo, mid) + s->phase[mid];

	/* At most j + 1, and so are 64 bits enough: one division of 128, the other is a product. */
	uint64_t left = (uint64_t)(product / w);

	*rest = (uint64_t)product - left * w;
	return left;
}

/* Carries the counts and roundings of @before, whose node [lo,hi) has served @j samples, into
 * @next. */
static void segment_carry(const struct order_segment *before, struct order_segment *next,
	uint32_t lo, uint32_t hi, uint64_t j)
{
	if (node_units(before, lo, hi) == 0)
		return;
	if (hi - lo == 1) {
		next->base[lo] += j;
		return;
	}
	uint32_t mid = lo + (hi - lo) / 2;
	uint64_t w = node_units(before, lo, hi), rest;
	uint64_t left = node_left(before, lo, mid, hi, j, &rest);

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
	return s;
}

void order_split(const struct order_segment *s, uint64_t j, uint32_t *dataset, uint64_t *ordinal)
{
	uint32_t lo = 0, hi = s->padded;

	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;
		uint64_t w = node_units(s, lo, hi), wl = node_units(s, lo, mid), rest, left;

		if (wl == w) { /* nothing on the right: the left count is j itself, whatever the
				  rounding */
			hi = mid;
			continue;
		}
		if (wl == 0) {
			lo = mid;
			continue;
		}
		left = node_left(s, lo, mid, hi, j, &rest);
		if (rest >= w - wl) {
			hi = mid;
			j = left;
		} else {
			lo = mid;
			j -= left;
		}
	}
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

/* ---- within a dataset ---- */

static uint64_t mul_div(uint64_t x, uint64_t y, uint64_t z)
{
	return (uint64_t)((u128)x * y / z);
}

/* The group of blocks that holds the x-th window, as its bounds [lo, lo + size) and its number. */
struct group {
	uint64_t lo, size, number;
};

static struct group group_of(const struct order_dataset *d, uint64_t x)
{
	uint64_t per = (uint64_t)d->block * d->group, n = d->windows;
	uint64_t groups = n / per + (n % per != 0);
	uint64_t g = (uint64_t)((((u128)x + 1) * groups - 1) / n);
	uint64_t lo = mul_div(g, n, groups);

	return (struct group){lo, mul_div(g + 1, n, groups) - lo, g};
}

/* Where the tail, the windows behind the last full block, stands: @tail windows from number @at on.
 */
static void tail_of(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t *at, uint64_t *tail)
{
	uint64_t full = d->windows / d->block;
	uint64_t key = order_derive(seed, KEY_TAIL, d->name_hash, epoch);

	*tail = d->windows % d->block;
	*at = (uint64_t)((u128)key * (full + 1) >> 64) * d->block;
}

static uint64_t block_window(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
{
	struct group g = group_of(d, x);
	uint64_t group_key = order_derive(seed, KEY_GROUP, d->name_hash, epoch, g.number);
	uint64_t y = g.lo + order_permute(g.size, group_key, x - g.lo);
	uint64_t full = d->windows / d->block, at, tail;

	tail_of(d, seed, epoch, &at, &tail);
	if (tail > 0 && y >= at && y - at < tail)
		return full * d->block + (y - at);
	if (tail > 0 && y >= at)
		y -= tail;
	return order_permute(
		       full, order_derive(seed, KEY_BLOCK, d->name_hash, epoch), y / d->block) *
		       d->block +
	       y % d->block;
}

static uint64_t block_unwindow(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t window)
{
	uint64_t full = d->windows / d->block, at, tail, y;

	tail_of(d, seed, epoch, &at, &tail);
	if (window >= full * d->block) {
		y = at + (window - full * d->block);
	} else {
		uint64_t key = order_derive(seed, KEY_BLOCK, d->name_hash, epoch);

		y = order_unpermute(full, key, window / d->block) * d->block + window % d->block;
		if (tail > 0 && y >= at)
			y += tail;
	}
	struct group g = group_of(d, y);

	return g.lo + order_unpermute(g.size,
			      order_derive(seed, KEY_GROUP, d->name_hash, epoch, g.number),
			      y - g.lo);
}

uint64_t order_window(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
{
	assert(x < d->windows);
	switch (d->shuffle) {
	case ORDER_NONE:
		break;
	case ORDER_GLOBAL:
		return order_permute(
			d->windows, order_derive(seed, KEY_SHUFFLE, d->name_hash, epoch), x);
	case ORDER_BLOCK:
		return block_window(d, seed, epoch, x);
	}
	return x;
}

uint64_t order_unwindow(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t window)
{
	assert(window < d->windows);
	switch (d->shuffle) {
	case ORDER_NONE:
		break;
	case ORDER_GLOBAL:
		return order_unpermute(
			d->windows, order_derive(seed, KEY_SHUFFLE, d->name_hash, epoch), window);
	case ORDER_BLOCK:
		return block_unwindow(d, seed, epoch, window);
	}
	return window;
}

uint64_t order_slide(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t shard,
	uint64_t slack)
{
	if (!d->slide)
		return 0;
	uint64_t key = order_derive(seed, KEY_SLIDE, d->name_hash, epoch, shard);

	return (uint64_t)((u128)key * ((u128)slack + 1) >> 64);
}

uint64_t order_shard_windows(uint64_t tokens, uint64_t window_tokens, uint64_t stride)
{
	return tokens < window_tokens ? 0 : (tokens - window_tokens) / stride + 1;
}

uint64_t order_shard_slack(uint64_t tokens, uint64_t window_tokens, uint64_t stride)
{
	return tokens < window_tokens ? 0 : (tokens - window_tokens) % stride;
}

/* ---- the whole function ---- */

/* Size of block @m: the last one of an exactly finite stream is cut short. */
static uint64_t block_size(const struct order *order, uint64_t m)
{
	uint64_t left = order->end - m * LIMIT_BLOCK;

	return order->exact_end && left < LIMIT_BLOCK ? left : LIMIT_BLOCK;
}

static uint64_t block_key(const struct order *order, uint64_t m)
{
	return order_derive(order->seed, KEY_MIX, m);
}

bool order_at(const struct order *order, uint64_t position, struct order_place *place)
{
	const struct order_segment *s = NULL;

	if (order->end && position >= order->end)
		return false;
	for (uint32_t i = 0; i < order->segments && order->segment[i]->start <= position; i++)
		s = order->segment[i];
	if (!s)
		return false;

	uint64_t j = position, ordinal;

	if (s->mixed > 1) {
		uint64_t m = position / LIMIT_BLOCK;

		j = m * LIMIT_BLOCK + order_permute(block_size(order, m), block_key(order, m),
					      position % LIMIT_BLOCK);
	}
	order_split(s, j - s->start, &place->dataset, &ordinal);

	const struct order_dataset *d = &order->dataset[place->dataset];

	place->epoch = ordinal / d->windows;
	place->window = order_window(d, order->seed, place->epoch, ordinal % d->windows);
	return true;
}

bool order_when(const struct order *order, const struct order_place *place, uint64_t *position)
{
	if (place->dataset >= order->datasets)
		return false;
	const struct order_dataset *d = &order->dataset[place->dataset];

	if (place->window >= d->windows)
		return false;

	u128 wide = (u128)place->epoch * d->windows +
		    order_unwindow(d, order->seed, place->epoch, place->window);

	if (wide > UINT64_MAX)
		return false;

	/* The last segment that had not yet served this ordinal when it started. */
	uint64_t ordinal = (uint64_t)wide, j;
	uint32_t i = order->segments;

	while (i > 0 && !(place->dataset < order->segment[i - 1]->datasets
					? order->segment[i - 1]->base[place->dataset] <= ordinal
					: false))
		i--;
	if (i == 0)
		return false;

	const struct order_segment *s = order->segment[i - 1];

	if (!order_join(s, place->dataset, ordinal, &j) || j > UINT64_MAX - s->start)
		return false;
	j += s->start;
	if (i < order->segments && j >= order->segment[i]->start)
		return false;
	/* Past an exact end nothing is scrambled; past another end the scramble may still bring it
	 * before it.
	 */
	if (order->exact_end && j >= order->end)
		return false;
	if (s->mixed > 1) {
		uint64_t m = j / LIMIT_BLOCK;

		j = m * LIMIT_BLOCK +
		    order_unpermute(block_size(order, m), block_key(order, m), j % LIMIT_BLOCK);
	}
	if (order->end && j >= order->end)
		return false;
	*position = j;
	return true;
}

/* ---- ranks ---- */

uint64_t order_rank_position(
	uint64_t next, uint64_t m, uint64_t rank, uint64_t world, uint64_t micro_batch)
{
	u128 batch;

	/* m·world + rank < 2^96 and × micro_batch < 2^113: no step of this overflows 128 bits. */
	assert(world <= LIMIT_WORLD && rank < world && micro_batch <= LIMIT_MICRO_BATCH);
	batch = (u128)m * world + rank;
	batch = batch * micro_batch + next;
	return batch > UINT64_MAX ? UINT64_MAX : (uint64_t)batch;
}
