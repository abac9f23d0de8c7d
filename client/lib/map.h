/*
 * This process's mapping of a ring. A handle has one current mapping, from the last attach. Older
 * ones stay while batches of them are held, so that a batch outlives its daemon.
 */
#ifndef TOKEND_MAP_H
#define TOKEND_MAP_H

#include "client/lib/release_queue.h"
#include "proto/fault.h"
#include "proto/ring.h"

#define SESSION_UNNAMED UINT64_MAX

struct mapping {
	struct ring ring;
	struct release_queue queue;
	uint64_t published; /* as last seen */
	uint64_t answered;  /* the last wake_at for which a wake-up byte was sent */
	uint64_t held;	    /* batches taken and not released */
	uint64_t id;
	uint64_t session; /* the daemon's number of it; SESSION_UNNAMED: an older daemon sends
			     none */
	bool serials;	  /* the daemon's replies carry the serials of queries */
	bool undoable;	  /* kept by struct undo, although nothing of it is held */
	void *meta, *data;
	void (*gone)(void *context, void *base, uint64_t bytes); /* of tokend_memory(); or NULL */
	void *context;
	struct mapping *older;
	uint64_t bits[]; /* of queue */
};

/* True if the counters are consistent: released ≤ taken ≤ published ≤ released + slots. */
bool mapping_sound(const struct mapping *m);
/* True if nothing needs it: no batch is held, and no undo leads back to it. */
bool mapping_idle(const struct mapping *m);

/*
 * Maps a ring's two memfds, which the caller still owns. On failure returns NULL and sets @fault:
 * FAULT_PROTOCOL if they are not a sealed ring of these sizes, otherwise the errno of the call that
 * failed.
 */
struct mapping *mapping_open(
	int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes, struct fault *fault);
/* Calls `gone`, unmaps and frees. @mapped: false in a forked child, which does not inherit the
 * memory. */
void mapping_close(struct mapping *m, bool mapped);

#endif
