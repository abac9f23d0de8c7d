/* Changing the mix. */
#ifndef TOKEND_MIX_H
#define TOKEND_MIX_H

#include "client/lib/handle.h"

/* tokend_set_mix() with effect from position @at on, which may be TOKEND_SOON. */
int mix_change(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t at, uint64_t *acts_from);

#endif
