/* The output of `tokctl plan --cost`. */
#ifndef TOKEND_CTL_COST_REPORT_H
#define TOKEND_CTL_COST_REPORT_H

#include "client/ctl/offline/cost.h"

struct cost_prices {
	double rate; /* tokens per second of the whole job; 0: not given */
	double get;  /* dollars per 1000 GETs */
	double byte; /* dollars per GB */
};

/* Computes and prints the cost of @tokens tokens from position @from on, or of all that a finite
 * stream has. Returns an exit status. */
int cost_report(const struct ctl_history *h, const struct dataset *const *map, uint64_t from,
	double tokens, uint64_t nodes, const struct cost_prices *prices, bool json);

#endif
