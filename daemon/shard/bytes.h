/*
 * A source of bytes: a plain file, an object in a store, or the contents of a compressed one.
 * Formats read through this interface, so they need not distinguish them.
 *
 * All functions block, except bytes_try(): call them from pool threads and tools, never from the
 * loop or the data thread. Several threads may read one source at once. Fault texts are without the
 * path.
 */
#ifndef TOKEND_BYTES_H
#define TOKEND_BYTES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes;
struct objects;
struct ahead;

struct bytes_ops {
	/* As bytes_read(). The range is checked, and @n > 0. */
	bool (*read)(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
	void (*close)(struct bytes *b); /* frees it */
	/*
	 * Reads the first @n bytes more cheaply than read(). False: use read(). NULL: read() is
	 * cheap enough.
	 */
	bool (*head)(const struct bytes *b, void *to, size_t n);
	/* As bytes_try(). The range is checked. NULL: always fails. */
	bool (*try)(const struct bytes *b, uint64_t at, void *to, size_t n);
	/* As bytes_check(). NULL: there is nothing to check. */
	bool (*check)(const struct bytes *b, struct fault *fault);
	/* As bytes_forget(). NULL: nothing is cached. */
	void (*forget)(const struct bytes *b);
};

struct bytes {
	const struct bytes_ops *ops;
	const char *path;     /* borrowed; valid until the shard is open */
	uint64_t size;	      /* of the contents, after decompression */
	bool plain;	      /* not compressed: read() is pread(fd), or a read of the object */
	uint64_t frames;      /* number of compressed frames, or 0 */
	uint64_t frame_bytes; /* decoded size of the largest one: the cost of reading one byte */
	uint64_t index_bytes; /* memory of the frames' index */
	int fd;		      /* -1: an object */
	uint32_t id;	      /* plain: bytes_id(), or bytes_object_id() */
	uint64_t version;     /* plain: ctime, or a hash of the object's key, size and ETag */
	struct fault *unread; /* NULL, or where bytes_head() stores its first fault */
	const struct objects *objects; /* it and its side files are there; NULL: files */
	struct ahead *ahead;	       /* of objects */
};

/*
 * Opens a file as a plain source, even if it is compressed. The caller closes @fd after the source.
 * On failure returns NULL and @fault; FAULT_DATA: not a regular file.
 */
struct bytes *bytes_open_plain(int fd, const char *path, struct fault *fault);
/*
 * Opens a side file of @shard (an index, for example) by its name, as a plain source that owns its
 * descriptor. *@b is NULL if there is no such file. Fault texts begin with the file's name, without
 * its directory.
 */
bool bytes_open_side(
	const struct bytes *shard, const char *path, struct bytes **b, struct fault *fault);
void bytes_close(struct bytes *b);
/*
 * Whether the file is unchanged since bytes_open_side(). For callers that keep what they read and
 * close the file. False: @fault; ESTALE: the file was changed, open it again.
 */
bool bytes_settled(const struct bytes *b, struct fault *fault);
/* A hash of a file's inode, size and mtime, to notice that it was replaced; never 0. */
struct stat;
uint32_t bytes_id(const struct stat *st);
/* The message for an open() that failed with @error. */
const char *bytes_open_fault(int error);

/*
 * Reads exactly @n bytes from offset @at. On failure returns false and @fault. FAULT_IO with errno
 * (EIO also if the file was truncated); FAULT_DATA: beyond the end, or damaged compressed data;
 * FAULT_MEMORY.
 */
bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
/*
 * The same without waiting: from the page cache, or from decoded frames. Returns false if the bytes
 * are not there, or on a fault, which bytes_read() will report; @to may have been written to.
 * Requires a file system that supports RWF_NOWAIT.
 */
bool bytes_try(const struct bytes *b, uint64_t at, void *to, size_t n);
/*
 * Decodes all of a small compressed file, so that damage is found before any token is served. Large
 * files are not checked. False: @fault.
 */
bool bytes_check(const struct bytes *b, struct fault *fault);
/* Drops cached bytes, so that the next read comes from the disk. */
void bytes_forget(const struct bytes *b);
/* Like bytes_read() of the first @n bytes, without decoding the rest of a large frame. */
bool bytes_begin(const struct bytes *b, void *to, size_t n, struct fault *fault);
/*
 * The same for the first @n bytes, or all of a shorter file, to recognise its format. Returns how
 * many; 0: they cannot be read.
 */
size_t bytes_head(const struct bytes *b, void *to, size_t n);

/* ---- names ---- */

/* Whether @path ends in @ending. */
bool bytes_ends_in(const char *path, const char *ending);
/* Where @path's @ending begins, which .zst or .zstd may follow. NULL: it does not end so. */
const char *bytes_ending(const char *path, const char *ending);
/*
 * Writes @path to @to, with @other in place of @ending: "x.bin.zst", ".bin", ".idx" give "x.idx".
 * Returns false if @path does not end so, the result does not fit, or its name is over NAME_MAX.
 */
bool bytes_side_path(
	const char *path, const char *ending, const char *other, char *to, size_t to_bytes);

/* ---- helpers for formats ---- */

/*
 * Copies up to @n bytes of a file to @to for a message. Unprintable characters and line breaks
 * become '?'. Returns @to.
 */
const char *bytes_shown(const void *from, size_t n, char *to, size_t to_bytes);

/* Little-endian integers at any address. */
static inline uint16_t bytes_u16(const void *p)
{
	const uint8_t *b = p;

	return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t bytes_u32(const void *p)
{
	const uint8_t *b = p;

	return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t bytes_u64(const void *p)
{
	return bytes_u32(p) | (uint64_t)bytes_u32((const uint8_t *)p + 4) << 32;
}

#endif
