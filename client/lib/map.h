/*
 * One ring as this process has it mapped, from one attach to the next. A handle has a current
 * generation; older ones stay only while batches of them are held, so that a batch outlives the
 * daemon that filled it, or while a GPU copies out of them.
 */
#ifndef TOKEND_MAP_H
#define TOKEND_MAP_H

#include "client/lib/giveback.h"
#include "client/lib/pin.h"
#include "proto/ring.h"

#define GENERATION_UNNAMED UINT64_MAX

struct generation {
	struct ring ring;
	struct giveback out;
	uint64_t published; /* as last seen */
	uint64_t answered;  /* the last wake_at that was sent its byte */
	uint64_t held;	    /* batches taken and not released */
	uint64_t id;
	uint64_t session; /* the daemon's number for it; GENERATION_UNNAMED: an older daemon does
			     not say */
	bool kept;	  /* the ring of struct kept: stays although nobody looks at it */
	void *meta, *data;
	struct copies *copies; /* to a GPU; NULL: there was none yet */
	struct generation *older;
	uint64_t bits[];
};

/* Nobody looks at it any more: no batches are held, no copies under way, and no edit may be taken
 * back to it.
 */
bool generation_idle(const struct generation *g);

/*
 * Maps the two segments; the descriptors stay the caller's. NULL, and one line in @why, if they are
 * not a sealed ring of these sizes, or there is no memory (*no_memory).
 */
struct generation *generation_map(int meta_fd, uint64_t meta_bytes, int data_fd,
	uint64_t data_bytes, bool *no_memory, char *why, size_t why_bytes);
/* @mapped: false in a forked child, where the segments are not. Memory that a GPU goes on reading
 * stays mapped. */
void generation_free(struct generation *g, bool mapped);

#endif
