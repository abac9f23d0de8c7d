/* Random numbers for tests, seeded, so that every failure can be repeated (xorshift64*). */
#ifndef TEST_RNG_H
#define TEST_RNG_H

#include <stdint.h>

struct rng {
	uint64_t state; /* not 0 */
};

static inline uint64_t rng_next(struct rng *r)
{
	r->state ^= r->state >> 12;
	r->state ^= r->state << 25;
	r->state ^= r->state >> 27;
	return r->state * UINT64_C(0x2545F4914F6CDD1D);
}

static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
	return rng_next(r) % n;
}

/* A number of any magnitude: below 2^8 is as likely as in [2^56, 2^64). */
static inline uint64_t rng_wide(struct rng *r)
{
	return rng_next(r) >> rng_below(r, 64);
}

#endif
