/* The range of positions that a proof is about. */
#ifndef TOKEND_CTL_PROOF_RANGE_H
#define TOKEND_CTL_PROOF_RANGE_H

#include "client/ctl/offline/records.h"

struct proof_range {
	bool has_from, has_to; /* given: --from, --to */
	uint64_t from, to;
};

/* False: a --from was given that this one of several passes did not reach. */
bool proof_range_reached(const struct proof_range *q, const struct records *r, uint64_t pass);
/* Fills in --from and --to if they are not given, and checks them. False after an error was
 * printed. */
bool proof_range_set(
	struct proof_range *q, const struct records *r, const struct record_peer *peer);

#endif
