/* The result of a proof in one line. */
#ifndef TOKEND_CTL_PROOF_VERDICT_H
#define TOKEND_CTL_PROOF_VERDICT_H

#include "client/ctl/offline/proof.h"

enum { PROOF_VERDICT_BYTES = 1400 };

/* Where the tokens of a position are. */
struct proof_source {
	const char *dataset; /* NULL: the position is past the end of the stream */
	const char *shard;   /* NULL: the dataset is no longer in the config */
	uint64_t offset;
};

struct proof_source proof_source(const struct proof *p, uint64_t position);
/* Positions that were repeated, lost or altered. */
uint64_t proof_findings(const struct proof *p);
/* "OK: …", or "NOT EXACT: " with the probable cause, what was found, and what to do. */
void proof_verdict(const struct proof *p, char text[PROOF_VERDICT_BYTES]);

#endif
