/* Chains of segments, given or random. Include it after cmocka.h. */
#ifndef ORDER_CHAIN_H
#define ORDER_CHAIN_H

#include "proto/order.h"
#include "tests/unit/rng.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline uint64_t hash_of(const char *name)
{
	return order_name_hash(name, strlen(name));
}

struct chain {
	struct order_segment *segment[8];
	uint32_t segments;
};

static inline void chain_add(struct chain *c, uint64_t start, const double *weights, uint32_t n)
{
	struct fault fault;
	uint64_t units[LIMIT_DATASETS];

	assert_true(order_units(weights, n, units, &fault));
	struct order_segment *s =
		c->segments == 0 ? order_segment_first(units, n)
				 : order_segment_next(c->segment[c->segments - 1], start, units, n);

	assert_non_null(s);
	assert_int_equal(s->start, start);
	c->segment[c->segments++] = s;
}

static inline void chain_free(struct chain *c)
{
	while (c->segments > 0)
		order_segment_free(c->segment[--c->segments]);
}

static inline void random_weights(struct rng *rng, double *weights, uint32_t n)
{
	for (uint32_t d = 0; d < n; d++)
		weights[d] = rng_below(rng, 4) == 0 ? 0 : 0.001 + (double)rng_below(rng, 1000);
	weights[rng_below(rng, n)] = 1 + (double)rng_below(rng, 1000);
}

/* A chain with random weights that appends datasets. Returns their final number. */
static inline uint32_t random_chain(struct rng *rng, struct chain *c, uint32_t n, uint32_t segments)
{
	uint64_t start = 0;

	for (uint32_t i = 0; i < segments; i++) {
		double weights[64];

		random_weights(rng, weights, n);
		chain_add(c, start, weights, n);
		start += LIMIT_BLOCK *
			 (1 + (rng_below(rng, 5) == 0 ? rng_wide(rng) >> 16 : rng_below(rng, 5)));
		n += (uint32_t)rng_below(rng, 3);
	}
	return c->segment[segments - 1]->datasets;
}

#endif
