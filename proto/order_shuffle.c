/* Inside a dataset: the keyed bijection, and the window of a sample by each kind of shuffle. */
#include "proto/order.h"

#include "proto/order_private.h"

#include <assert.h>
#include <math.h>

/* ---- permute ---- */

/* A Feistel network over the two digits of x in mixed radix (b, a), repeated until x < n. */

struct feistel {
	uint64_t a, b;
	unsigned rounds;
	uint64_t key[16];
};

static uint64_t ceil_sqrt(uint64_t n)
{
	assert(n > 0);
	uint64_t r = (uint64_t)sqrt((double)n);

	/* A double has 53 bits: correct the last ones exactly. */
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
	assert(f.b > 0 && f.b <= f.a && (u128)f.a * f.b >= n);
	assert(f.rounds % 2 == 0 && f.rounds <= sizeof(f.key) / sizeof(f.key[0]));
	for (unsigned r = 0; r < f.rounds; r++)
		f.key[r] = order_mix64(key + ORDER_GOLDEN * (r + 1));
	return f;
}

/* A pseudo-random number below @m from @v under key @k. */
static uint64_t feistel_round(uint64_t v, uint64_t k, uint64_t m)
{
	v ^= k;
	v *= ORDER_MUL_1;
	v ^= v >> 32;
	v *= ORDER_MUL_2;
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

uint64_t order_window(const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t x)
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

uint64_t order_unwindow(
	const struct order_dataset *d, uint64_t seed, uint64_t epoch, uint64_t window)
{
	assert(window < d->windows);
	switch (d->shuffle) {
	case ORDER_NONE:
		break;
	case ORDER_GLOBAL:
		return order_unpermute(d->windows,
			order_derive(seed, ORDER_KEY_SHUFFLE, d->name_hash, epoch), window);
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
