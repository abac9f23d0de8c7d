/*
 * How much memory the cgroup leaves this process: the least of all groups on the way from its own
 * to the root, by memory.max and memory.high (version 2) or memory.limit_in_bytes (version 1). Page
 * cache does not count as used: the kernel drops it before it kills a process. All of this reads
 * files: do not call it on the loop. Any other thread may.
 */
#ifndef TOKEND_CGROUP_H
#define TOKEND_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

struct cgroup;

struct cgroup_room {
	uint64_t limit, used; /* of the group that leaves least */
	uint64_t kept;	      /* of its limit, for what is not a ring */
	uint64_t left;	      /* to us: limit - used - kept, or 0 */
	char path[256];	      /* of the group */
};

/* The groups of this process, by @root/proc and the mounts that it names. @root is "" except in
 * tests. NULL: there is no memory controller, or no memory for this. */
struct cgroup *cgroup_find(const char *root);
void cgroup_free(struct cgroup *cgroup);
/* False: nothing is limited. */
bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room);

/*
 * Reserves @bytes that will be used at once, until cgroup_used(), so that several attaches at a
 * time do not count on the same room. False, with @room: they do not fit. @all: what is kept may be
 * used, too.
 */
bool cgroup_promise(struct cgroup *cgroup, uint64_t bytes, bool all, struct cgroup_room *room);
void cgroup_used(struct cgroup *cgroup, uint64_t bytes);

#endif
