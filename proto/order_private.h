/* What the files of the order share. */
#ifndef TOKEND_ORDER_PRIVATE_H
#define TOKEND_ORDER_PRIVATE_H

#include "proto/order.h"

typedef unsigned __int128 u128;

/* The first value of every derived key, so that keys for different uses never coincide. */
enum {
	ORDER_KEY_MIX = 1,
	ORDER_KEY_SHUFFLE,
	ORDER_KEY_BLOCK,
	ORDER_KEY_TAIL,
	ORDER_KEY_GROUP,
	ORDER_KEY_SLIDE,
	ORDER_KEY_PART,
};

/* Positions that are mapped together. Where a function has @lanes, it is 1 or ORDER_LANES. */
enum { ORDER_LANES = 4 };

/* order_permute() of @x[] in a block of LIMIT_BLOCK, all with one key. */
void order_scramble(uint64_t key, uint64_t *x, unsigned lanes);
/* order_split() of @j[]: the datasets of @place[], and @j[] becomes their ordinals. */
void order_split_lanes(const struct order_segment *segment, uint64_t *j, struct order_place *place,
	unsigned lanes);
/* Epochs and windows of these ordinals of @place[]'s datasets. */
void order_windows(const struct order *order, const uint64_t *ordinal, struct order_place *place,
	unsigned lanes);

#endif
