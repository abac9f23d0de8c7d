/* Prints the result of a proof, for people and as JSON. */
#ifndef TOKEND_CTL_PROOF_REPORT_H
#define TOKEND_CTL_PROOF_REPORT_H

#include "client/ctl/common/out.h"
#include "client/ctl/offline/proof.h"

/* The verdict, then a table. False: out of memory, and
 * an error was printed. */
bool proof_put_text(struct ctl_out *out, const struct proof *p);
bool proof_put_json(struct ctl_out *out, const struct proof *p);

#endif
