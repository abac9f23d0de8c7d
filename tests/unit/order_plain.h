/* The order's permutation, written from its definition: what proto/order.c is compared with. */
#ifndef ORDER_PLAIN_H
#define ORDER_PLAIN_H

#include <stdint.h>

typedef unsigned __int128 wide;

#define PLAIN_GOLDEN UINT64_C(0x9E3779B97F4A7C15)
#define PLAIN_M1     UINT64_C(0xBF58476D1CE4E5B9)
#define PLAIN_M2     UINT64_C(0x94D049BB133111EB)

static inline uint64_t plain_mix64(uint64_t x)
{
	x = (x ^ (x >> 30)) * PLAIN_M1;
	x = (x ^ (x >> 27)) * PLAIN_M2;
	return x ^ (x >> 31);
}

/* The least a with a·a ≥ n, by bisection. */
static inline uint64_t plain_root(uint64_t n)
{
	uint64_t lo = 0, hi = UINT64_C(1) << 32;

	while (lo < hi) {
		uint64_t middle = lo + (hi - lo) / 2;

		if ((wide)middle * middle >= n)
			hi = middle;
		else
			lo = middle + 1;
	}
	return lo;
}

static inline uint64_t plain_scatter(uint64_t v, uint64_t k)
{
	v = (v ^ k) * PLAIN_M1;
	v = (v ^ (v >> 32)) * PLAIN_M2;
	return v ^ (v >> 32);
}

/* @root: plain_root(n). */
static inline uint64_t plain_permute(uint64_t n, uint64_t root, uint64_t key, uint64_t x)
{
	uint64_t a = root, b = (uint64_t)(((wide)n + a - 1) / a);

	do {
		uint64_t h = x / a, low = x % a;

		for (unsigned r = 0; r < (n < 64 ? 16 : 8); r++) {
			uint64_t k = plain_mix64(key + PLAIN_GOLDEN * (r + 1));

			if (r % 2 == 0)
				h = (uint64_t)((h + ((wide)plain_scatter(low, k) * b >> 64)) % b);
			else
				low = (uint64_t)((low + ((wide)plain_scatter(h, k) * a >> 64)) % a);
		}
		x = h * a + low;
	} while (x >= n);
	return x;
}

#endif
