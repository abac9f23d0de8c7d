/* The rules of which rows count; see proto/record.h. */
#ifndef TOKEND_CTL_RECORDS_JUDGE_H
#define TOKEND_CTL_RECORDS_JUDGE_H

#include "client/ctl/offline/records.h"

/* Fills in passes, peers and generations, and which rows of each section count. Errors are
 * printed. */
bool records_judge(struct records *r);

#endif
