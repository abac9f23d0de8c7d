/*
 * One ring as this process has it mapped, from one attach to the next. A handle has a current generation;
 * older ones stay only while batches of them are held, so that a batch outlives the daemon that filled it.
 */
#ifndef TOKEND_MAP_H
#define TOKEND_MAP_H

#include "../proto/ring.h"
#include "giveback.h"

struct generation {
	struct ring ring;
	struct giveback out;
	uint64_t published; /* as last seen */
	uint64_t answered;  /* the last wake_at that was sent its byte */
	uint64_t held;	    /* batches taken and not released */
	uint64_t id;
	void *meta, *data;
	struct generation *older;
	uint64_t bits[];
};

/*
 * Maps the two segments; the descriptors stay the caller's. NULL, and one line in @why, if they are not a
 * sealed ring of these sizes, or there is no memory (*no_memory).
 */
struct generation *generation_map(int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes,
	bool *no_memory, char *why, size_t why_bytes);
/* @mapped: false in a forked child, where the segments are not. */
void generation_free(struct generation *g, bool mapped);

#endif
