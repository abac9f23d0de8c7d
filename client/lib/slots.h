/*
 * Slots that were handed out, in the current ring and in former ones, and their way back to the
 * daemon.
 */
#ifndef TOKEND_SLOTS_H
#define TOKEND_SLOTS_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* tokend_batch.handle: the slot's number, and above it the mapping's. */
enum { SLOTS_BITS = 48 };

static inline uint64_t slots_number(uint64_t handle)
{
	return handle & ((UINT64_C(1) << SLOTS_BITS) - 1);
}

static inline uint64_t slots_handle(const struct mapping *m, uint64_t s)
{
	return m->id << SLOTS_BITS | s;
}

/* The pointer to the mapping that @handle names; it holds NULL if there is none. */
struct mapping **slots_mapping(struct tokend *t, uint64_t handle);
/* Slot @s of the mapping that @at points to comes back. False if it was not out. A former mapping
 * of which nothing is held any more is closed, and *@at is the one after it. */
bool slots_return(struct tokend *t, struct mapping **at, uint64_t s);

#endif
