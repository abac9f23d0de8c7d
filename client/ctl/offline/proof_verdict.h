/* The result of a proof in one line. */
#ifndef TOKEND_CTL_PROOF_VERDICT_H
#define TOKEND_CTL_PROOF_VERDICT_H

#include "client/ctl/offline/proof.h"

/* Positions that were repeated, lost or altered. */
uint64_t proof_findings(const struct proof *p);
/* @mixes_given: the mixes are the run's, not only the config's. */
void proof_verdict(const struct proof *p, bool mixes_given, char *text, size_t bytes);

#endif
