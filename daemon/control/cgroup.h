/*
 * How much memory the cgroup leaves to this process: the minimum over all groups from its own up to
 * the root, by memory.max and memory.high. Limits of cgroup version 1 are ignored. Page cache does
 * not count as used: the kernel drops it before it kills a process. These functions read files: any
 * thread may call them, except the loop's.
 */
#ifndef TOKEND_CGROUP_H
#define TOKEND_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

struct cgroup;

struct cgroup_room {
	uint64_t limit, used; /* bytes of the group that leaves the least */
	uint64_t kept;	      /* part of the limit reserved for memory other than rings */
	uint64_t left;	      /* limit - used - kept, or 0 */
	char path[256];	      /* of the group */
};

/* Finds the groups of this process below @root, which is "" except in tests. NULL: the kernel has
 * none of version 2, or out of memory. */
struct cgroup *cgroup_find(const char *root); /* free() it */
/* Fills @room. False: no group has a limit, or @cgroup is NULL. */
bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room);

#endif
