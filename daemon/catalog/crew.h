/*
 * A crew: one piece of work on each of many things, several at a time, for work that mostly waits
 * for a disk.
 */
#ifndef TOKEND_CREW_H
#define TOKEND_CREW_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Calls @work(context, i) for i = 0 … n - 1, in no order and from several threads where there is
 * much to do. Returns the least i for which it was false, or @n: everything before that was done,
 * of what comes behind it some may have been.
 */
uint64_t crew_each(uint64_t n, bool (*work)(void *context, uint64_t i), void *context);

#endif
