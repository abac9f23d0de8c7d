/*
 * Reads of bytes, and calls that may block. The rest belongs to daemon/reader: which shards are
 * open, whether a file is the right one, short reads, the alignment of O_DIRECT.
 *
 * A read of a file system that can read without waiting (one that knows RWF_NOWAIT: ext4, xfs,
 * btrfs, …) goes through io_uring. Where that is forbidden, as in most containers, the data thread
 * reads bytes that are in the page cache itself. Everything else goes to a pool of threads, which
 * has one for each work in flight, so no work waits for another one that hangs.
 *
 * One thread uses an io; only io_kick() may be called from others.
 */
#ifndef TOKEND_IO_H
#define TOKEND_IO_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* Alignment of O_DIRECT's offsets, lengths and addresses: enough for all common devices. Offsets
 * and lengths may need less: io_align(). */
enum { IO_ALIGN = 4096, IO_SECTOR = 512 };

/*
 * One operation: a read, or a call. It belongs to the io from io_submit() until io_reap() returns
 * it. Its outcome is a result as the kernel writes it, with a negative errno; the submitter turns
 * that into a fault.
 */
struct io_work {
	STAILQ_ENTRY(io_work) next; /* the io's */
	int64_t result; /* bytes read, or the value of call(), or -errno; the caller repeats it
			   after EINTR and EAGAIN */
	/* A call: runs in a thread that may block; nowait is false. NULL: a read. */
	int64_t (*call)(struct io_work *work);
	/* The caller's: called after io_reap(). */
	void (*done)(void *owner, struct io_work *work);
	int fd;
	bool nowait;	    /* the file system can read without waiting (it knows RWF_NOWAIT) */
	bool direct;	    /* the file is open with O_DIRECT */
	struct iovec to[2]; /* of a read; the second is filled next, and may be empty */
	uint64_t at;
};

struct io;

/* For at most @works that are submitted and not reaped. @ring: with io_uring. NULL: @fault, whose
 * text is the failed function and the name of the errno: "io_uring_setup: EPERM". */
struct io *io_new(unsigned works, bool ring, struct fault *fault);
void io_free(struct io *io);		  /* only after every work was reaped */
const char *io_name(const struct io *io); /* "uring" or "pread" */
void io_submit(struct io *io, struct io_work *work);
/* Starts all submitted works. Also called after each io_reap(). */
void io_commit(struct io *io);
/* Returns up to @max works that have ended. If there are none, waits for one or for a kick, until
 * @deadline_ns on CLOCK_MONOTONIC (0: does not wait). */
unsigned io_reap(
	struct io *io, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked);
void io_kick(struct io *io); /* ends a wait in io_reap(); any thread */

/* The alignment of O_DIRECT's offsets and lengths in an open file: a power of two from IO_SECTOR to
 * IO_ALIGN. */
unsigned io_align(int fd);
/* Can the file system of @fd read without waiting? Never blocks. */
bool io_knows_nowait(int fd);

int64_t io_now_ns(void); /* CLOCK_MONOTONIC */

/* Fills @fault as io_new() does: @what failed with @error. Always false. */
bool io_fault(struct fault *fault, int error, const char *what);

#endif
