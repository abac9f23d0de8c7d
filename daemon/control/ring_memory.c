#include "daemon/control/host.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { NODES = 1024, LONG_BITS = 8 * sizeof(long), MPOL_PREFERRED = 1 }; /* of <numaif.h> */

/*
 * The policy belongs to the memfd, whichever process touches its pages. If it is refused (no such
 * node, or seccomp forbids the call), the ring is slower on large machines, but correct.
 */
static void prefer_node(struct ring_memory *memory, void *map, size_t bytes)
{
	unsigned long mask[NODES / LONG_BITS] = {0};

	if (memory->node == RING_MEMORY_ANYWHERE)
		return;
	if (memory->node < NODES) {
		mask[memory->node / LONG_BITS] = 1UL << memory->node % LONG_BITS;
		/* The kernel reads one bit less than this number. */
		if (syscall(SYS_mbind, map, bytes, MPOL_PREFERRED, mask, NODES + 1UL, 0U) == 0)
			return;
		memory->node_error = errno;
	} else {
		memory->node_error = EINVAL;
	}
	memory->node = RING_MEMORY_ANYWHERE;
}

/*
 * Makes a memfd of @bytes: allocated, mapped, sealed.
 *
 * A client may call mbind() on its mapping. It needs no permission, and the policy then also
 * applies to the daemon's page faults. This gives the client no power over the daemon or other
 * users:
 *
 * - A policy applies to pages that are allocated later. All pages exist before the client gets the
 *   descriptor, and the seals fix the size. New pages are needed only after a swap-out, or if the
 *   client frees pages of the data memfd (fallocate() or MADV_REMOVE; F_SEAL_FUTURE_WRITE forbids
 *   both in the meta memory). Slots are written in full before they are published, so the client
 *   affects its own batches only. `memory:` has counted the pages already.
 * - With MPOL_BIND to a full node, the daemon's page fault waits for reclaim there. A client can
 *   cause that anyway, by filling the node with memory of its own. The kernel ignores a policy for
 *   nodes outside the daemon's cpuset.
 * - MPOL_MF_MOVE moves only pages that no other process maps. The daemon maps those that it has
 *   written, so a client can move only pages of its own slots that were never used.
 *   MPOL_MF_MOVE_ALL requires CAP_SYS_NICE.
 *
 * Only a read-only descriptor would prevent mbind(). But clients write their control words to the
 * data memfd, and GPU drivers register it for writing. tests/system/test_ring_memory.py tries what
 * a hostile client can do.
 */
static bool make(struct ring_memory *memory, const char *name, uint64_t bytes, int seals, int *fd,
	void **map)
{
	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes) < 0)
		return false;
	*map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (*map == MAP_FAILED)
		return false;
	prefer_node(memory, *map, bytes);
	/*
	 * Out of memory this returns an error, where a page fault would kill us. The pages exist
	 * now, but for page tables of 1/500 of their size. Each is cleared at its first write, so
	 * an attach does not wait until all are: that takes longer than to allocate them.
	 */
	if (fallocate(*fd, 0, 0, (off_t)bytes) < 0)
		return false;
	return fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | seals) == 0;
}

bool ring_memory_new(struct ring_memory *memory, const struct ring_geometry *g, uint64_t node,
	struct fault *fault)
{
	*memory = (struct ring_memory){
		.meta = MAP_FAILED, .data = MAP_FAILED, .meta_fd = -1, .data_fd = -1, .node = node};
	memory->ring.geometry = *g;
	if (!make(memory, "tokend-meta", g->meta_bytes, F_SEAL_FUTURE_WRITE, &memory->meta_fd,
		    &memory->meta) ||
		!make(memory, "tokend-data", g->data_bytes, 0, &memory->data_fd, &memory->data)) {
		int error = errno;

		ring_memory_free(memory);
		return fault_errno(fault, error, "ring",
			"cannot make %" PRIu64 " bytes of shared memory: %s",
			g->meta_bytes + g->data_bytes, strerror(error));
	}
	ring_format(&memory->ring, g, memory->meta, memory->data);
	return true;
}

void ring_memory_close_fds(struct ring_memory *memory)
{
	if (memory->meta_fd >= 0)
		close(memory->meta_fd);
	if (memory->data_fd >= 0)
		close(memory->data_fd);
	memory->meta_fd = memory->data_fd = -1;
}

static void vacate(void *at, uint64_t bytes)
{
	/* Atomic: a read that ends now writes to the old or the new pages. If mmap() fails, nothing
	 * has changed. */
	(void)!mmap(at, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void ring_memory_vacate(struct ring_memory *memory)
{
	ring_memory_close_fds(memory);
	vacate(memory->meta, memory->ring.geometry.meta_bytes);
	vacate(memory->data, memory->ring.geometry.data_bytes);
}

void ring_memory_free(struct ring_memory *memory)
{
	ring_memory_close_fds(memory);
	if (memory->meta && memory->meta != MAP_FAILED)
		munmap(memory->meta, memory->ring.geometry.meta_bytes);
	if (memory->data && memory->data != MAP_FAILED)
		munmap(memory->data, memory->ring.geometry.data_bytes);
	memory->meta = memory->data = NULL;
}
