/*
 * Sources of bytes: a plain file, or the contents of a compressed one. Formats read through this
 * and do not know which it is.
 *
 * All functions block, except bytes_try(): they run in pool threads and in tools, never on the loop
 * or the data thread. Several threads may read one source at once. Texts of faults are without the
 * path.
 */
#ifndef TOKEND_BYTES_H
#define TOKEND_BYTES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes;

struct bytes_ops {
	/* As bytes_read(), which has checked the range; @n > 0. */
	bool (*read)(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
	void (*close)(struct bytes *b); /* frees it */
	/* The first @n bytes, cheaper than read(). False: use read(). NULL: read() is cheap. */
	bool (*head)(const struct bytes *b, void *to, size_t n);
	/* As bytes_try(), which has checked the range. NULL: never. */
	bool (*try)(const struct bytes *b, uint64_t at, void *to, size_t n);
	/* As bytes_check(). NULL: there is nothing to check. */
	bool (*check)(const struct bytes *b, struct fault *fault);
	/* As bytes_forget(). NULL: nothing is kept. */
	void (*forget)(const struct bytes *b);
};

struct bytes {
	const struct bytes_ops *ops;
	const char *path;     /* borrowed; valid while formats recognise, describe and open */
	uint64_t size;	      /* of what read() addresses */
	bool plain;	      /* read() is pread(fd) */
	uint64_t frames;      /* number of compressed frames, or 0 */
	uint64_t frame_bytes; /* size of the largest one, decoded: one byte may cost so much */
	uint64_t index_bytes; /* memory that their places take */
	int fd;
	uint32_t id;	      /* plain: bytes_id() */
	uint64_t ctime_ns;    /* plain */
	struct fault *unread; /* NULL, or where bytes_head() leaves its first fault */
};

/* A plain source, even if the file is compressed. @fd stays the caller's. NULL: @fault; FAULT_DATA:
 * not a regular file. */
struct bytes *bytes_open_plain(int fd, const char *path, struct fault *fault);
/*
 * A shard's side file (an index, say) as a plain source, opened by name and closed with the source.
 * *@b is NULL if there is none. Texts of faults begin with the last part of its name.
 */
bool bytes_open_side(const char *path, struct bytes **b, struct fault *fault);
void bytes_close(struct bytes *b);
/*
 * Was nothing written to the file since bytes_open_side() opened it? For callers that keep what
 * they read and close the file. False: @fault; ESTALE: open it again.
 */
bool bytes_settled(const struct bytes *b, struct fault *fault);
/* A hash of a file's inode, size and mtime, to notice another file in its place; never 0. */
struct stat;
uint32_t bytes_id(const struct stat *st);
/* Text for an open() that failed with @error. */
const char *bytes_open_fault(int error);

/*
 * Reads exactly @n bytes from @at. False: @fault. FAULT_IO with errno (EIO also if the file has
 * become shorter); FAULT_DATA: beyond the end, or damaged compressed data; FAULT_MEMORY.
 */
bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
/*
 * The same without waiting: from the page cache, or from decoded frames. False: the bytes are not
 * there, or there is a fault, which bytes_read() will report; @to may have been written to. Only
 * on file systems that know RWF_NOWAIT.
 */
bool bytes_try(const struct bytes *b, uint64_t at, void *to, size_t n);
/*
 * Decodes a small compressed file whole, so that damage is found before anything is served. Large
 * ones are not checked. False: @fault.
 */
bool bytes_check(const struct bytes *b, struct fault *fault);
/* Drops what is cached of it, so that the next read comes from the disk. */
void bytes_forget(const struct bytes *b);
/* Reads up to @n first bytes, to recognise a file by. Returns how many; 0 if they cannot be read.
 */
size_t bytes_head(const struct bytes *b, void *to, size_t n);

/* ---- names ---- */

/* Does the name end in @ending? */
bool bytes_ends_in(const char *path, const char *ending);
/* Does the name end in @ending, or, compressed, in @ending and .zst or .zstd? Says where it begins,
 * or NULL.
 */
const char *bytes_ending(const char *path, const char *ending);
/*
 * @to: @path with @other in place of @ending ("x.bin.zst", ".bin", ".idx": "x.idx"). False if it
 * does not end so, or does not fit, or no file can have so long a name.
 */
bool bytes_side_path(
	const char *path, const char *ending, const char *other, char *to, size_t to_bytes);

/* ---- what all formats need ---- */

/* @n bytes of a file for people, as far as they fit: what cannot be shown, or breaks a line, is a
 * '?'. */
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
