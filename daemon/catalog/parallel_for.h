/*
 * Calls a function for each of many items, from several threads. For work that mostly waits for a
 * disk, such as the start-up pass over all shards.
 */
#ifndef TOKEND_PARALLEL_FOR_H
#define TOKEND_PARALLEL_FOR_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Calls @work(context, i) for i = 0 … n - 1, in any order, and from several threads if @n is large.
 * Returns the least i for which @work returned false, or @n. All calls for smaller i have returned
 * true; some calls for larger i may have been made.
 */
uint64_t parallel_for(uint64_t n, bool (*work)(void *context, uint64_t i), void *context);

#endif
