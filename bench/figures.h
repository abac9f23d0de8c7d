/* Clocks and medians of the benchmarks in C. */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include <assert.h>
#include <stdlib.h>
#include <time.h>

static inline double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline double median(double *values, size_t n)
{
	assert(n > 0);
	qsort(values, n, sizeof(*values), by_value);
	return values[n / 2];
}

#endif
