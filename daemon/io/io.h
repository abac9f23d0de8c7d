/*
 * What a way of reading has to do: open a path and look at it, read bytes, be woken. Everything
 * that can be said once for all of them (which shards are open, what is the right file, short
 * reads, O_DIRECT's alignment) is in disk.c, so two backends cannot differ in it, and a test can
 * put one of its own between.
 */
#ifndef TOKEND_DISK_OPS_H
#define TOKEND_DISK_OPS_H

#include "daemon/reader/look.h"
#include "daemon/reader/reader.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Closes @source and @old if there are any, opens @path, and fills @found. Any step may hang on a
 * network file system. */
struct reader_opening {
	const char *path;
	int flags;
	struct shard *source; /* NULL afterwards */
	int old;	      /* a descriptor to close before, or -1; -1 afterwards */
	struct statx found;
};

struct pool_share;

/* One operation. It belongs to the backend from submit() until reap() hands it back. */
struct io_work {
	struct io_work *next;	  /* the backend's */
	struct pool_share *share; /* whose threads it may use */
	_Atomic bool begun;	  /* the backend is at it; cleared by the caller when it is back */
	unsigned ticks;		  /* the caller's: since then */
	int64_t result; /* descriptor or bytes, else -errno; EINTR and EAGAIN are the caller's to
			   repeat */
	/* Not NULL: neither of the two below, but to be called where it may block (nowait is false
	 * then). */
	int64_t (*call)(struct io_work *work);
	struct reader_opening *opening; /* NULL: it is a read, or a look */
	struct file *look;		/* with a call that looks at it; else NULL */
	int fd;
	bool nowait; /* the file system can read without waiting (it knows RWF_NOWAIT) */
	bool direct; /* the file is open with O_DIRECT */
	void *to;
	size_t bytes;
	uint64_t at;
};

/* What statx() found, as stat() has it. */
static inline struct stat stat_of(const struct statx *found)
{
	return (struct stat){
		.st_dev = makedev(found->stx_dev_major, found->stx_dev_minor),
		.st_ino = found->stx_ino,
		.st_mode = found->stx_mode,
		.st_nlink = found->stx_nlink,
		.st_uid = found->stx_uid,
		.st_gid = found->stx_gid,
		.st_size = (off_t)found->stx_size,
		.st_blksize = found->stx_blksize,
		.st_blocks = (blkcnt_t)found->stx_blocks,
		.st_mtim = {.tv_sec = found->stx_mtime.tv_sec, .tv_nsec = found->stx_mtime.tv_nsec},
		.st_ctim = {.tv_sec = found->stx_ctime.tv_sec, .tv_nsec = found->stx_ctime.tv_nsec},
	};
}

/* Nothing is ordered by it: it is looked at once a second. */
static inline void work_begun(struct io_work *work, bool begun)
{
	atomic_store_explicit(&work->begun, begun, memory_order_relaxed);
}

struct io_ops {
	const char *name;
	/* At most @works are submitted and not reaped. NULL: *@error is an errno, and @what failed.
	 */
	void *(*open)(unsigned works, const char **what, int *error);
	void (*close)(void *backend); /* only when every work is back */
	void (*submit)(void *backend, struct io_work *work);
	void (*commit)(
		void *backend); /* starts what was submitted; is called after each reap(), too */
	/* Up to @max works that ended. With none, waits until @deadline_ns on CLOCK_MONOTONIC (0:
	 * not at all) or a kick. */
	unsigned (*reap)(void *backend, struct io_work **done, unsigned max, int64_t deadline_ns,
		bool *kicked);
	void (*kick)(void *backend); /* any thread */
	/* Works of @share take long from now on, or no longer. */
	void (*slow)(void *backend, struct pool_share *share, bool slow);
};

extern const struct io_ops uring_ops;
extern const struct io_ops pread_ops;

/* Linux keeps no offset, length or address of O_DIRECT more exactly than this anywhere that
 * matters. */
enum { IO_ALIGN = 4096 };

/* reader_open() with a backend of the caller's. */
struct reader *reader_open_with(const struct io_ops *ops, const struct reader_options *options,
	char *why, size_t why_bytes);

#endif
