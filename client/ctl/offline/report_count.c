#include "client/ctl/offline/report_count.h"

#include <stdlib.h>

enum { LEAST = 128 }; /* positions of a stretch: fewer say little about a mix */

bool report_count_begin(struct report_count *c, uint64_t from, uint64_t to, uint32_t datasets)
{
	uint64_t step = (to - from - 1) / CHART_POINTS + 1;

	*c = (struct report_count){
		.from = from, .step = step > LEAST ? step : LEAST, .datasets = datasets};
	c->points = (unsigned)((to - from - 1) / c->step + 1);
	c->served = calloc((size_t)c->points * datasets, sizeof(*c->served));
	c->total = calloc(datasets, sizeof(*c->total));
	c->epochs = calloc(datasets, sizeof(*c->epochs));
	c->rank = calloc(datasets, sizeof(*c->rank));
	return c->served && c->total && c->epochs && c->rank;
}

void report_count_row(void *context, uint64_t position, uint32_t d, uint64_t epoch)
{
	struct report_count *c = context;

	c->served[(position - c->from) / c->step * c->datasets + d]++;
	c->total[d]++;
	if (epoch >= c->epochs[d])
		c->epochs[d] = epoch + 1;
}

static int by_total(const void *a, const void *b, void *context)
{
	const struct report_count *c = context;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (c->total[x] != c->total[y])
		return c->total[x] > c->total[y] ? -1 : 1;
	return x < y ? -1 : 1;
}

void report_count_end(struct report_count *c)
{
	for (uint32_t d = 0; d < c->datasets; d++)
		c->rank[d] = d;
	qsort_r(c->rank, c->datasets, sizeof(*c->rank), by_total, c);
}

void report_count_free(struct report_count *c)
{
	free(c->served);
	free(c->total);
	free(c->epochs);
	free(c->rank);
}

uint32_t report_coloured(const struct report_count *c)
{
	return c->datasets <= CHART_COLOURS ? c->datasets : CHART_COLOURS - 1;
}

uint64_t report_served(const struct report_count *c, unsigned point, uint32_t i, bool and_others)
{
	const uint64_t *served = c->served + (size_t)point * c->datasets;
	uint64_t sum = served[c->rank[i]];

	while (and_others && ++i < c->datasets)
		sum += served[c->rank[i]];
	return sum;
}
