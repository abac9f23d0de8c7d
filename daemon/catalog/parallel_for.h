/*
 * Calls one function for each of many things from several threads. For work that mostly waits for a
 * disk, such as the start-up pass over all shards.
 */
#ifndef TOKEND_PARALLEL_FOR_H
#define TOKEND_PARALLEL_FOR_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Calls @work(context, i) for i = 0 … n - 1, in no order, and from several threads if @n is large.
 * Returns the least i for which @work returned false, or @n. Everything before that i was done; of
 * what comes after it, some may have been.
 */
uint64_t parallel_for(uint64_t n, bool (*work)(void *context, uint64_t i), void *context);

#endif
