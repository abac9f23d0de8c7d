/*
 * The two shared segments of a session: sealed memfds, populated before anybody else sees them, so
 * that all their memory is charged to the daemon and no page fault waits in a trainer's step.
 */
#ifndef TOKEND_SEGMENT_H
#define TOKEND_SEGMENT_H

#include "proto/ring.h"

struct segment {
	struct ring ring;
	void *meta, *data;
	int meta_fd, data_fd; /* -1 once handed over */
	uint64_t node;
	int node_error; /* an errno, 0: it lies as asked */
};

/*
 * On NUMA node @node as long as there is room on it, else on others; SEGMENT_ANYWHERE: where the
 * kernel likes. A node that cannot be had is none: segment->node says then SEGMENT_ANYWHERE, and
 * segment->node_error why. False with errno. May take long for large rings: not on the loop.
 */
#define SEGMENT_ANYWHERE UINT64_MAX
bool segment_new(struct segment *segment, const struct ring_geometry *g, uint64_t node);
/* The fds are of no more use once the client has them. */
void segment_close_fds(struct segment *segment);
/*
 * Gives the memory back before the reads into it are done: they go on into private pages at the
 * same addresses, of which only those that they write to exist. The segment is only good for
 * segment_free() then.
 */
void segment_vacate(struct segment *segment);
void segment_free(struct segment *segment);

#endif
