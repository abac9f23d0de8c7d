/*
 * The two memfds of a ring: sealed, populated before anybody else sees them, so
 * that all their memory is charged to the daemon and no page fault waits in a trainer's step.
 */
#ifndef TOKEND_RING_MEMORY_H
#define TOKEND_RING_MEMORY_H

#include "proto/fault.h"
#include "proto/ring.h"

struct ring_memory {
	struct ring ring;
	void *meta, *data;
	int meta_fd, data_fd; /* -1 once handed over */
	uint64_t node;
	int node_error; /* an errno, 0: it lies as asked */
};

/*
 * On NUMA node @node as long as there is room on it, otherwise on others; RING_MEMORY_ANYWHERE:
 * where the kernel likes. A node that cannot be had is none: memory->node says then
 * RING_MEMORY_ANYWHERE, and memory->node_error why. May take long for large rings: not on the loop.
 */
#define RING_MEMORY_ANYWHERE UINT64_MAX
bool ring_memory_new(struct ring_memory *memory, const struct ring_geometry *g, uint64_t node,
	struct fault *fault);
/* The fds are of no more use once the client has them. */
void ring_memory_close_fds(struct ring_memory *memory);
/*
 * Gives the memory back before the reads into it are done: they go on into private pages at the
 * same addresses, of which only those that they write to exist. The ring memory is only good for
 * ring_memory_free() then.
 */
void ring_memory_vacate(struct ring_memory *memory);
void ring_memory_free(struct ring_memory *memory);

#endif
