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

#endif
