/*
 * Ways of reading bytes. A backend does two things: it reads bytes of a descriptor, and it calls a
 * function in a thread that may block. Everything that is the same for all backends (which shards
 * are open, whether it is the right file, short reads, the alignment of O_DIRECT) is in
 * daemon/reader, so two backends cannot differ in it, and a test can put a backend of its own
 * between.
 *
 * Two backends: io_uring, and a pool of threads that pread where io_uring is forbidden (most
 * containers). One thread uses a backend; only kick() may be called from others.
 */
#ifndef TOKEND_IO_H
#define TOKEND_IO_H

#include "proto/fault.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Linux asks for no coarser alignment of O_DIRECT's offsets, lengths and addresses anywhere that
 * matters. */
enum { IO_ALIGN = 4096 };

struct pool_share;

/*
 * One operation: a read, or a call. It belongs to the backend from submit() until reap() returns
 * it. It has no fault of its own, because a completion is passed on as the kernel wrote it:
 * @result is the one place where an errno is negative. Whoever submitted it makes a fault of that.
 */
struct io_work {
	struct io_work *next;	  /* the backend's */
	struct pool_share *share; /* whose threads it may use */
	_Atomic bool begun;	  /* the backend is at it; cleared by the caller when it is back */
	unsigned ticks;		  /* the caller's: since then */
	int64_t result;		  /* bytes that were read, what call() returned, or -errno; EINTR
				     and EAGAIN are the caller's to repeat */
	/* Called where it may block (nowait is false then). NULL: it is a read. */
	int64_t (*call)(struct io_work *work);
	/* The caller's: what to do when it is back. */
	void (*done)(void *owner, struct io_work *work);
	int fd;
	bool nowait; /* the file system can read without waiting (it knows RWF_NOWAIT) */
	bool direct; /* the file is open with O_DIRECT */
	void *to;
	size_t bytes;
	uint64_t at;
};

/* Relaxed: it orders nothing, it is read once a second. */
static inline void work_begun(struct io_work *work, bool begun)
{
	atomic_store_explicit(&work->begun, begun, memory_order_relaxed);
}

struct io_ops {
	const char *name;
	/* At most @works are submitted and not reaped at a time. NULL: @fault, whose text is what
	 * failed and the name of the errno: "io_uring_setup: EPERM". */
	void *(*open)(unsigned works, struct fault *fault);
	void (*close)(void *backend); /* only when every work is back */
	void (*submit)(void *backend, struct io_work *work);
	/* Starts what was submitted. Also called after each reap(). */
	void (*commit)(void *backend);
	/* Up to @max works that ended. If there are none, waits until @deadline_ns on
	 * CLOCK_MONOTONIC (0: not at all) or a kick. */
	unsigned (*reap)(void *backend, struct io_work **done, unsigned max, int64_t deadline_ns,
		bool *kicked);
	void (*kick)(void *backend); /* any thread */
	/* Works of @share take long from now on, or no longer. */
	void (*slow)(void *backend, struct pool_share *share, bool slow);
};

extern const struct io_ops uring_ops;
extern const struct io_ops pread_ops;

/* Opens @path and fills @found with its statx(). Returns a descriptor or -errno, as a call does.
 * May hang on a network file system. */
int64_t io_open(const char *path, int flags, struct statx *found);
/* Can the file system of @fd read without waiting? If it cannot, it says so before it looks at the
 * file. */
bool io_knows_nowait(int fd);

int64_t io_now_ns(void); /* CLOCK_MONOTONIC */

/* @fault: @what failed with @error, for io_ops.open(). Always false. */
bool io_open_fault(struct fault *fault, int error, const char *what);

#endif
