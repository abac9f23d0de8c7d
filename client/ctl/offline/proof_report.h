/* Prints the result of a proof, for people and as JSON. */
#ifndef TOKEND_CTL_PROOF_REPORT_H
#define TOKEND_CTL_PROOF_REPORT_H

#include "client/ctl/common/out.h"
#include "client/ctl/offline/proof.h"

void proof_put_text(struct ctl_out *out, const struct proof *p);
void proof_put_json(struct ctl_out *out, const struct proof *p);
/* Prints hints that may explain the findings, on stderr. @mixes_given: --run or --cursor was given.
 */
void proof_hint(const struct proof *p, bool mixes_given);

#endif
