/* The one loop whose items are worked on by several threads. */
#ifndef TOKEND_PARALLEL_FOR_H
#define TOKEND_PARALLEL_FOR_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	PARALLEL_THREADS = 64, /* at most */
	PARALLEL_READS = 16,   /* for work that waits for a local disk */
};

/* An item, and who works on it. */
struct parallel {
	void *context;
	uint64_t i;
	unsigned thread; /* below the number of threads: for memory of its own */
};

/*
 * Calls @work for i = 0 … n - 1, begun in this order, from up to @threads threads, this one among
 * them. Returns the least i for which it returned false, with its @fault, or @n. All calls for
 * smaller i have returned true; some for larger i may have been made.
 */
uint64_t parallel_for(uint64_t n, unsigned threads,
	bool (*work)(const struct parallel *p, struct fault *fault), void *context,
	struct fault *fault);

#endif
