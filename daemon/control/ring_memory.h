/*
 * The two memfds of a ring. They are sealed, and their pages allocated, before the client gets
 * them: all their memory is charged to the daemon. The daemon is the first to write to a slot, so
 * no trainer's step waits until its pages are cleared. To register the ring with a GPU clears the
 * rest.
 */
#ifndef TOKEND_RING_MEMORY_H
#define TOKEND_RING_MEMORY_H

#include "proto/fault.h"
#include "proto/ring.h"

struct ring_memory {
	struct ring ring;
	void *meta, *data;
	int meta_fd, data_fd; /* -1 once the client has them */
	uint64_t node;	      /* NUMA node, or RING_MEMORY_ANYWHERE */
	int node_error;	      /* errno: it is not on the requested node; 0: it is */
};

/*
 * Makes the ring's memory, on NUMA node @node if there is room, otherwise on other nodes. If the
 * node cannot be requested, memory->node is RING_MEMORY_ANYWHERE and memory->node_error the reason.
 * Not on the loop: large rings take hundreds of milliseconds.
 */
#define RING_MEMORY_ANYWHERE UINT64_MAX
bool ring_memory_new(struct ring_memory *memory, const struct ring_geometry *g, uint64_t node,
	struct fault *fault);
/* Closes the descriptors, once the client has them. */
void ring_memory_close_fds(struct ring_memory *memory);
/*
 * Frees the memory while reads into it are in flight. They continue into private pages at the same
 * addresses; only pages that they write to are allocated. Afterwards only ring_memory_free() may be
 * called.
 */
void ring_memory_vacate(struct ring_memory *memory);
void ring_memory_free(struct ring_memory *memory);

#endif
