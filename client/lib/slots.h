/*
 * Slots of held batches, in the current ring and in former ones, and their release.
 */
#ifndef TOKEND_SLOTS_H
#define TOKEND_SLOTS_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* tokend_batch.handle: the slot's number in the low bits, the mapping's above. */
enum { SLOTS_BITS = 48 };

static inline uint64_t slots_number(uint64_t handle)
{
	return handle & ((UINT64_C(1) << SLOTS_BITS) - 1);
}

static inline uint64_t slots_handle(const struct mapping *m, uint64_t s)
{
	return m->id << SLOTS_BITS | s;
}

/* Points to the link to @handle's mapping; the link is NULL if there is no such mapping. */
struct mapping **slots_mapping(struct tokend *t, uint64_t handle);
/* Releases slot @s of mapping *@at. False if it was not held. A former mapping that nothing needs
 * any more is closed, and *@at becomes the next one. */
bool slots_return(struct tokend *t, struct mapping **at, uint64_t s);

#endif
