#include "daemon/control/host.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/*
 * Makes a memfd of @bytes: allocated, mapped, sealed.
 *
 * A client may call mbind() on its mapping, and the policy then also applies to the daemon's page
 * faults. That gives it no power over others. A policy applies to pages that are allocated later,
 * and all pages exist before the client gets the descriptor. New ones are needed only if the client
 * frees pages of the data memfd. Slots are written in full before they are published, so that
 * damages its own batches only. tests/system/test_ring_memory.py tries what a hostile client can
 * do.
 */
static bool make(const char *name, uint64_t bytes, int seals, int *fd, void **map)
{
	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes) < 0)
		return false;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);

	if (at == MAP_FAILED)
		return false;
	*map = at;
	/*
	 * Out of memory this returns an error, where a page fault would kill us. The pages exist
	 * now, but for page tables of 1/500 of their size. Each is cleared at its first write, so
	 * an attach does not wait until all are: that takes longer than to allocate them.
	 */
	if (fallocate(*fd, 0, 0, (off_t)bytes) < 0)
		return false;
	return fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | seals) == 0;
}

bool ring_memory_new(struct ring_memory *memory, const struct ring_geometry *g, struct fault *fault)
{
	*memory = (struct ring_memory){.meta_fd = -1, .data_fd = -1};
	memory->ring.geometry = *g;
	if (!make("tokend-meta", g->meta_bytes, F_SEAL_FUTURE_WRITE, &memory->meta_fd,
		    &memory->meta) ||
		!make("tokend-data", g->data_bytes, 0, &memory->data_fd, &memory->data)) {
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
	if (memory->meta)
		munmap(memory->meta, memory->ring.geometry.meta_bytes);
	if (memory->data)
		munmap(memory->data, memory->ring.geometry.data_bytes);
	memory->meta = memory->data = NULL;
}
