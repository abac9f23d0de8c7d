/* Inside a dataset: the keyed bijection, and the window of a sample by each kind of shuffle. */
#include "proto/order.h"

#include "proto/order_private.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

const char *const order_shuffles[] = {
	[ORDER_NONE] = "none", [ORDER_GLOBAL] = "global", [ORDER_BLOCK] = "block", NULL};

/* ---- permute ---- */

/*
 * A Feistel network over the two digits of x in mixed radix (b, a), repeated until x < n. Keys are
 * made where they are used: a round waits for the round before it, and its key is ready by then.
 */

enum { FEW = 64 }; /* below this, eight rounds show a bias */

struct digits {
	uint64_t a, b;
};

static uint64_t ceil_sqrt(uint64_t n)
{
	assert(n > 0);
	uint64_t r = (uint64_t)sqrt((double)n);

	if (n < UINT64_C(1) << 52)
		return r + (r * r < n);
	/* A double has 53 bits: correct the last ones exactly. */
	while ((u128)r * r >= n && r > 0)
		r--;
	while ((u128)r * r < n)
		r++;
	return r;
}

static struct digits digits_of(uint64_t n)
{
	uint64_t a = ceil_sqrt(n);
	uint64_t b = a * (a - 1) >= n ? a - 1 : a; /* n / a, rounded up, as (a - 1)^2 < n <= a^2 */

	assert(b > 0 && (u128)a * b >= n);
	return (struct digits){a, b};
}

static unsigned rounds_of(uint64_t n)
{
	return n < FEW ? 16 : 8;
}

/* Round @r: a pseudo-random number below @m from @v. */
static inline uint64_t feistel_round(uint64_t v, uint64_t key, unsigned r, uint64_t m)
{
	v ^= order_mix64(key + ORDER_GOLDEN * (r + 1));
	v *= ORDER_MUL_1;
	v ^= v >> 32;
	v *= ORDER_MUL_2;
	v ^= v >> 32;
	return (uint64_t)((u128)v * m >> 64);
}

static inline uint64_t add_mod(uint64_t x, uint64_t y, uint64_t m)
{
	x += y;
	return x >= m ? x - m : x;
}

static inline uint64_t sub_mod(uint64_t x, uint64_t y, uint64_t m)
{
	return x >= y ? x - y : x + m - y;
}

uint64_t order_permute(uint64_t n, uint64_t key, uint64_t x)
{
	assert(n > 0 && x < n);
	struct digits d = digits_of(n);
	unsigned rounds = rounds_of(n);

	do {
		uint64_t h = x / d.a, l = x % d.a;

		for (unsigned r = 0; r < rounds; r += 2) {
			h = add_mod(h, feistel_round(l, key, r, d.b), d.b);
			l = add_mod(l, feistel_round(h, key, r + 1, d.a), d.a);
		}
		x = h * d.a + l;
	} while (x >= n);
	return x;
}

uint64_t order_unpermute(uint64_t n, uint64_t key, uint64_t y)
{
	assert(n > 0 && y < n);
	struct digits d = digits_of(n);

	do {
		uint64_t h = y / d.a, l = y % d.a;

		for (unsigned r = rounds_of(n); r > 0; r -= 2) {
			l = sub_mod(l, feistel_round(h, key, r - 1, d.a), d.a);
			h = sub_mod(h, feistel_round(l, key, r - 2, d.b), d.b);
		}
		y = h * d.a + l;
	} while (y >= n);
	return y;
}

/* ---- within a dataset ---- */

static uint64_t mul_div(uint64_t x, uint64_t y, uint64_t z)
{
	assert(z > 0);
	return (uint64_t)((u128)x * y / z);
}

/* The group of blocks that contains the x-th window: [lo, lo + size), and its number. */
struct group {
	uint64_t lo, size, number;
};

static struct group group_of(const struct order_dataset *d, uint64_t x)
{
	assert(x < d->windows && d->block > 0 && d->group > 0);
	uint64_t per = (uint64_t)d->block * d->group, n = d->windows;
	uint64_t groups = n / per + (n % per != 0);
	uint64_t g = (uint64_t)((((u128)x + 1) * groups - 1) / n);
	uint64_t lo = mul_div(g, n, groups), size = mul_div(g + 1, n, groups) - lo;

	assert(lo <= x && x - lo < size);
	return (struct group){lo, size, g};
}

/* The tail, the *@tail windows after the last full block, is served from number *@at on. */
static void tail_of(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t *at, uint64_t *tail)
{
	uint64_t full = d->windows / d->block;
	uint64_t key = order_derive(seed, ORDER_KEY_TAIL, d->name_hash, epoch);

	*tail = d->windows % d->block;
	*at = (uint64_t)((u128)key * (full + 1) >> 64) * d->block;
	assert(*tail < d->block && *at <= full * d->block);
}

static uint64_t block_window(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
{
	struct group g = group_of(d, x);
	uint64_t group_key = order_derive(seed, ORDER_KEY_GROUP, d->name_hash, epoch, g.number);
	uint64_t y = g.lo + order_permute(g.size, group_key, x - g.lo);
	uint64_t full = d->windows / d->block, at, tail;

	tail_of(d, seed, epoch, &at, &tail);
	if (tail > 0 && y >= at && y - at < tail)
		return full * d->block + (y - at);
	if (tail > 0 && y >= at)
		y -= tail;
	return order_permute(full, order_derive(seed, ORDER_KEY_BLOCK, d->name_hash, epoch),
		       y / d->block) *
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
		uint64_t key = order_derive(seed, ORDER_KEY_BLOCK, d->name_hash, epoch);

		y = order_unpermute(full, key, window / d->block) * d->block + window % d->block;
		if (tail > 0 && y >= at)
			y += tail;
	}
	struct group g = group_of(d, y);

	return g.lo + order_unpermute(g.size,
			      order_derive(seed, ORDER_KEY_GROUP, d->name_hash, epoch, g.number),
			      y - g.lo);
}

/* ---- a part of a path ---- */

/* By how many windows the last run is short. */
static uint64_t missing(uint64_t windows)
{
	return -windows % ORDER_RUN;
}

bool order_part(struct order_dataset *d, uint64_t of, uint64_t lo, uint64_t hi)
{
	assert(lo < hi && hi <= ORDER_UNITS);
	d->windows = of;
	d->part = (struct order_part){0};
	if (lo == 0 && hi == ORDER_UNITS)
		return true;

	uint64_t runs = order_runs(of), key = order_derive(0, ORDER_KEY_PART, of);
	uint64_t first = (uint64_t)((u128)lo * runs >> 32), end = (uint64_t)((u128)hi * runs >> 32);

	if (first == end)
		return false;
	d->windows = ORDER_RUN * (end - first);
	d->part = (struct order_part){of, key, first, UINT64_MAX};
	if (missing(of) > 0) {
		uint64_t at = order_unpermute(runs, key, runs - 1);

		if (at >= first && at < end) {
			d->windows -= missing(of);
			d->part.gap = ORDER_RUN * (at - first + 1) - missing(of);
		}
	}
	assert(order_runs(d->windows) == end - first);
	return true;
}

static inline uint64_t to_path(const struct order_dataset *d, uint64_t y)
{
	const struct order_part *p = &d->part;

	assert(y < d->windows);
	if (p->of == 0)
		return y;
	if (y >= p->gap)
		y += missing(p->of);
	return ORDER_RUN * order_permute(order_runs(p->of), p->key, p->first + y / ORDER_RUN) +
	       y % ORDER_RUN;
}

/* UINT64_MAX: @window is in another part, or not in the path. */
static uint64_t from_path(const struct order_dataset *d, uint64_t window)
{
	const struct order_part *p = &d->part;

	if (window >= order_path_windows(d))
		return UINT64_MAX;
	if (p->of == 0)
		return window;
	/* Below 0 for runs before the part. */
	uint64_t run = order_unpermute(order_runs(p->of), p->key, window / ORDER_RUN) - p->first;
	uint64_t y = ORDER_RUN * run + window % ORDER_RUN;

	if (run >= order_runs(d->windows))
		return UINT64_MAX;
	return y < p->gap ? y : y - missing(p->of);
}

enum { SHARE_BYTES = 16 };

/* Writes the shortest decimal that becomes @share / ORDER_UNITS, rounded down. Returns @text. */
static char *share_text(uint64_t share, char text[SHARE_BYTES])
{
	double middle = ((double)share + 0.5) / (double)ORDER_UNITS, power = 1;
	int digits = 0;

	assert(share <= ORDER_UNITS);
	/* Ten digits are enough: their steps are smaller than a unit. */
	while (digits < 10 && (uint64_t)((double)(uint64_t)(middle * power + 0.5) / power *
					 (double)ORDER_UNITS) != share) {
		digits++;
		power *= 10;
	}
	snprintf(text, SHARE_BYTES, "%.*f", digits, middle);
	return text;
}

char *order_part_text(uint64_t lo, uint64_t hi, char text[ORDER_PART_BYTES])
{
	char from[SHARE_BYTES], to[SHARE_BYTES];

	assert(lo < hi);
	snprintf(text, ORDER_PART_BYTES, "[%s, %s]", share_text(lo, from), share_text(hi, to));
	return text;
}

/* ---- windows ---- */

/* The number in the part of the x-th window. */
static uint64_t shuffled(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
{
	assert(x < d->windows);
	switch (d->shuffle) {
	case ORDER_NONE:
		break;
	case ORDER_GLOBAL:
		return order_permute(
			d->windows, order_derive(seed, ORDER_KEY_SHUFFLE, d->name_hash, epoch), x);
	case ORDER_BLOCK:
		return block_window(d, seed, epoch, x);
	}
	return x;
}

uint64_t order_window(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
{
	return to_path(d, shuffled(d, seed, epoch, x));
}

uint64_t order_unwindow(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t window)
{
	uint64_t y = from_path(d, window);

	if (y == UINT64_MAX)
		return y;
	assert(y < d->windows);
	switch (d->shuffle) {
	case ORDER_NONE:
		break;
	case ORDER_GLOBAL:
		return order_unpermute(
			d->windows, order_derive(seed, ORDER_KEY_SHUFFLE, d->name_hash, epoch), y);
	case ORDER_BLOCK:
		return block_unwindow(d, seed, epoch, y);
	}
	return y;
}

uint64_t order_slide(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t shard,
	uint64_t slack)
{
	if (!d->slide)
		return 0;
	uint64_t key = order_derive(seed, ORDER_KEY_SLIDE, d->name_hash, epoch, shard);
	uint64_t slide = (uint64_t)((u128)key * ((u128)slack + 1) >> 64);

	assert(slide <= slack);
	return slide;
}

uint64_t order_shard_windows(uint64_t tokens, uint64_t window_tokens, uint64_t stride)
{
	assert(window_tokens > 0 && stride > 0);
	return tokens < window_tokens ? 0 : (tokens - window_tokens) / stride + 1;
}

uint64_t order_shard_slack(uint64_t tokens, uint64_t window_tokens, uint64_t stride)
{
	assert(window_tokens > 0 && stride > 0);
	return tokens < window_tokens ? 0 : (tokens - window_tokens) % stride;
}
