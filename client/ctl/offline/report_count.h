/* Counts the rows of a pass by dataset and by stretches of positions, for `tokctl report`. */
#ifndef TOKEND_CTL_REPORT_COUNT_H
#define TOKEND_CTL_REPORT_COUNT_H

#include "client/ctl/offline/chart.h"
#include "proto/order.h"

#include <stdbool.h>

struct report_count {
	uint64_t from, step; /* a stretch has @step positions */
	unsigned points;     /* stretches, at most CHART_POINTS */
	uint32_t datasets;
	uint64_t *served; /* [points][datasets] */
	uint64_t *total;  /* [datasets] */
	uint64_t *epochs; /* [datasets] the last epoch that was reached + 1; 0: not served */
	uint32_t *rank;	  /* [datasets] the most served first */
};

/* False: out of memory. Call report_count_free() either way. */
bool report_count_begin(struct report_count *c, uint64_t from, uint64_t to, uint32_t datasets);
/* The row() of a struct proof. */
void report_count_row(void *context, uint64_t position, uint32_t dataset, uint64_t epoch);
/* Sorts the datasets. */
void report_count_end(struct report_count *c);
void report_count_free(struct report_count *c);

/* The datasets that have a colour of their own; the others share the last. */
uint32_t report_coloured(const struct report_count *c);
/* The rows of a stretch: of the @i-th dataset, or of all from the @i-th on. */
uint64_t report_served(const struct report_count *c, unsigned point, uint32_t i, bool and_others);

#endif
