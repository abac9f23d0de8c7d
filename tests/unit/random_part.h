/* A random part of a path, for tests. */
#ifndef TEST_RANDOM_PART_H
#define TEST_RANDOM_PART_H

#include "proto/order.h"
#include "tests/unit/rng.h"

/* Draws the part [*@lo, *@hi) of the @windows of a path. If it has no run, the part is the whole.
 */
static inline void random_part(struct rng *rng, uint64_t windows, uint64_t *lo, uint64_t *hi)
{
	struct order_dataset part;

	*lo = rng_below(rng, ORDER_UNITS);
	*hi = *lo + 1 + rng_below(rng, ORDER_UNITS - *lo);
	if (order_part(&part, windows, *lo, *hi))
		return;
	*lo = 0;
	*hi = ORDER_UNITS;
}

#endif
