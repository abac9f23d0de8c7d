/* The share of the samples that a mix takes from a dataset. */
#ifndef TOKEND_CTL_SHARE_H
#define TOKEND_CTL_SHARE_H

#include "proto/order.h"

#include <stdio.h>

struct share {
	char text[32]; /* "70.000000 %" */
};

/* Weight of dataset @d in units; 0 if the segment is older than the dataset. */
static inline uint64_t ctl_units(const struct order_segment *segment, uint32_t d)
{
	return d < segment->datasets ? segment->units[d] : 0;
}

/* From 0 to 1. */
static inline double ctl_fraction(const struct order_segment *s, uint32_t d)
{
	return (double)ctl_units(s, d) / (double)s->prefix[s->padded];
}

static inline struct share ctl_share(const struct order_segment *s, uint32_t d)
{
	struct share share;

	snprintf(share.text, sizeof(share.text), "%.6f %%", 100.0 * ctl_fraction(s, d));
	return share;
}

#endif
