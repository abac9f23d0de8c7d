/*
 * Backends read bytes. A backend does two things: it reads bytes of a descriptor, and it calls a
 * function in a thread that may block. The rest is the same for all backends and belongs to
 * daemon/reader: which shards are open, whether a file is the right one, short reads, the alignment
 * of O_DIRECT. A test can put a backend of its own in between.
 *
 * There are two: io_uring, and a pool of threads with pread() for systems that forbid io_uring
 * (most containers). One thread uses a backend; only kick() may be called from others.
 */
#ifndef TOKEND_IO_H
#define TOKEND_IO_H

#include "proto/fault.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Alignment of O_DIRECT's offsets, lengths and addresses: enough for all common devices. Offsets
 * and lengths may need less: io_align(). */
enum { IO_ALIGN = 4096, IO_SECTOR = 512 };

struct pool_share;

/*
 * One operation: a read, or a call. It belongs to the backend from submit() until reap() returns
 * it. Its outcome is a result as the kernel writes it, with a negative errno; the submitter turns
 * that into a fault.
 */
struct io_work {
	struct io_work *next;	  /* the backend's */
	struct pool_share *share; /* whose threads it may use */
	_Atomic bool begun;	  /* set by the backend; cleared by the caller after reap() */
	unsigned ticks;		  /* the caller's: since it was begun */
	int64_t result;		  /* bytes read, or the value of call(), or -errno; the caller
				     repeats it after EINTR and EAGAIN */
	/* A call: runs in a thread that may block; nowait is false. NULL: a read. */
	int64_t (*call)(struct io_work *work);
	/* The caller's: called after reap(). */
	void (*done)(void *owner, struct io_work *work);
	int fd;
	bool nowait; /* the file system can read without waiting (it knows RWF_NOWAIT) */
	bool direct; /* the file is open with O_DIRECT */
	void *to;
	size_t bytes;
	uint64_t at;
};

/* Relaxed, because it orders nothing. It is read once a second. */
static inline void work_begun(struct io_work *work, bool begun)
{
	atomic_store_explicit(&work->begun, begun, memory_order_relaxed);
}

struct io_ops {
	const char *name;
	/* Opens a backend for at most @works that are submitted and not reaped. NULL: @fault, with
	 * the failed function and the name of the errno as its text: "io_uring_setup: EPERM". */
	void *(*open)(unsigned works, struct fault *fault);
	void (*close)(void *backend); /* only after every work was reaped */
	void (*submit)(void *backend, struct io_work *work);
	/* Starts all submitted works. Also called after each reap(). */
	void (*commit)(void *backend);
	/* Returns up to @max works that have ended. If there are none, waits for one or for a kick,
	 * until @deadline_ns on CLOCK_MONOTONIC (0: does not wait). */
	unsigned (*reap)(void *backend, struct io_work **done, unsigned max, int64_t deadline_ns,
		bool *kicked);
	void (*kick)(void *backend); /* ends a wait in reap(); any thread */
	/* Takes back a call that is submitted and that no thread has begun. False: it has begun,
	 * and reap() returns it. */
	bool (*withdraw)(void *backend, struct io_work *work);
	/* Sets whether the storage of @share is slow. */
	void (*slow)(void *backend, struct pool_share *share, bool slow);
};

extern const struct io_ops uring_ops;
extern const struct io_ops pread_ops;

/* Opens @path read-only and fills *@found by statx(). Returns a descriptor or -errno. May hang on a
 * network file system. */
int64_t io_open(const char *path, int flags, struct statx *found);
/* The alignment of O_DIRECT's offsets and lengths in a file that io_open() @found: a power of two
 * from IO_SECTOR to IO_ALIGN. */
unsigned io_align(const struct statx *found);
/* Can the file system of @fd read without waiting? Never blocks. */
bool io_knows_nowait(int fd);

int64_t io_now_ns(void); /* CLOCK_MONOTONIC */

/* Fills @fault as io_ops.open() does: @what failed with @error. Always false. */
bool io_open_fault(struct fault *fault, int error, const char *what);

#endif
