/* Judges which rows count, by the rules in proto/record.h. */
#ifndef TOKEND_CTL_RECORDS_JUDGE_H
#define TOKEND_CTL_RECORDS_JUDGE_H

#include "client/ctl/offline/records.h"

/* Fills in r->passes, the peers with their generations, and limit and last of each section. Errors
 * are printed. */
bool records_judge(struct records *r);

#endif
