/*
 * One ring as this process has it mapped, from one attach to the next. A handle has a current
 * mapping; older ones stay only while batches of them are held, so that a batch outlives the daemon
 * that filled it, or while a GPU copies out of them.
 */
#ifndef TOKEND_MAP_H
#define TOKEND_MAP_H

#include "client/lib/pin.h"
#include "client/lib/release_queue.h"
#include "proto/fault.h"
#include "proto/ring.h"

#define SESSION_UNNAMED UINT64_MAX

struct mapping {
	struct ring ring;
	struct release_queue queue;
	uint64_t published; /* as last seen */
	uint64_t answered;  /* the last wake_at that was sent its byte */
	uint64_t held;	    /* batches taken and not released */
	uint64_t id;
	uint64_t session; /* the daemon's number for it; SESSION_UNNAMED: an older daemon does not
			     say */
	bool serials;	  /* the daemon's replies carry the serials of queries */
	bool undoable;	  /* the mapping of struct undo: stays although nothing of it is held */
	void *meta, *data;
	struct copies *copies; /* to a GPU; NULL: there was none yet */
	struct mapping *older;
	uint64_t bits[];
};

/* Is slot @s on its way to a GPU? */
static inline bool mapping_copies(const struct mapping *m, uint64_t s)
{
	return m->copies && copies_has(m->copies, s);
}
/* Do its counters keep their order? released ≤ taken ≤ published ≤ released + slots. */
bool mapping_sound(const struct mapping *m);
/* Nothing of it is needed any more: no batches are held, no copies under way, and no edit may be
 * taken back to it. */
bool mapping_idle(const struct mapping *m);

/*
 * Maps the two memfds; the descriptors stay the caller's. On failure returns NULL, and @fault:
 * FAULT_PROTOCOL if they are not a sealed ring of these sizes, FAULT_MEMORY if there is no memory.
 */
struct mapping *mapping_open(
	int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes, struct fault *fault);
/* @mapped: false in a forked child, where the memory is not mapped. Memory that a GPU goes on
 * reading stays mapped. */
void mapping_close(struct mapping *m, bool mapped);

#endif
