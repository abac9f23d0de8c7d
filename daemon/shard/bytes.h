/*
 * Where a shard's bytes come from: a file as it lies, or what a compressed file decodes to. Formats
 * read through this and never know which it is.
 *
 * All of it blocks: it runs in pool threads and in tools, never on the loop or the data thread. A
 * source may be read by several threads at once.
 */
#ifndef TOKEND_BYTES_H
#define TOKEND_BYTES_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes;

struct bytes_ops {
	/* Reads exactly @n > 0 bytes from @at; bytes_read() has checked the range. As bytes_read()
	 * says. */
	bool (*read)(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
	void (*close)(struct bytes *b); /* frees it */
	/* The first @n bytes, for less than read() costs. False: ask that. NULL: it costs little.
	 */
	bool (*head)(const struct bytes *b, void *to, size_t n);
	/* As bytes_try() says, of a range that it has checked. NULL: never. */
	bool (*try)(const struct bytes *b, uint64_t at, void *to, size_t n);
	/* As bytes_check() says. NULL: there is nothing to look at. */
	bool (*check)(const struct bytes *b, struct fault *fault);
	/* As bytes_forget() says. NULL: nothing is kept. */
	void (*forget)(const struct bytes *b);
};

struct bytes {
	const struct bytes_ops *ops;
	const char *path; /* borrowed: tells formats what lies beside it, while they recognise,
			     describe, open */
	uint64_t size;	  /* of what read() addresses */
	bool plain;	  /* read() is pread(fd): bytes lie in the file as they are addressed */
	uint64_t frames;  /* compressed: how many there are, and what the largest decodes to; else 0
			   */
	uint64_t frame_bytes; /* what reading a single byte may cost */
	uint64_t index_bytes; /* what is kept of where they lie */
	int fd;
	uint32_t id;	   /* of a file as it lies: bytes_id() */
	uint64_t ctime_ns; /* likewise */
};

/* Always as it lies, and no seek table is looked for. */
struct bytes *bytes_open_plain(int fd, const char *path, struct fault *fault);
/*
 * A side file of a shard (an index, say), as it lies: opened by name, closed with the source. *@b
 * is NULL where there is none. The texts of faults begin with the last part of its name.
 */
bool bytes_open_side(const char *path, struct bytes **b, struct fault *fault);
void bytes_close(struct bytes *b);
/*
 * Of a file that bytes_open_side() opened: was nothing written to it since? For whoever keeps what
 * was read, and not the file. False: @fault, and errno is ESTALE: open it again.
 */
bool bytes_settled(const struct bytes *b, struct fault *fault);
/*
 * What tells a file from another in its place, in short: of inode, size and time of change; never
 * 0.
 */
struct stat;
uint32_t bytes_id(const struct stat *st);
/* What to say of a file that open() refused with @error: of a socket it says no more than ENXIO. */
const char *bytes_open_fault(int error);

/*
 * Reads exactly @n bytes from @at. False: *@error is an errno (EIO: beyond the end, or the file has
 * got shorter; EBADMSG: damaged compressed data; ENOMEM; …) and @fault one line without the path.
 * Any thread; several at once.
 */
bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
/*
 * The same if it takes no waiting: what the page cache holds, or decoded frames. False: it is not
 * at hand, or anything else, which bytes_read() will tell; @to may be written to. For files that
 * know RWF_NOWAIT.
 */
bool bytes_try(const struct bytes *b, uint64_t at, void *to, size_t n);
/*
 * What can be known of it only by decoding, where that costs little: a small compressed file is
 * decoded whole, so that a damaged one is refused before any of it is served. False: @fault, one
 * line without the path.
 */
bool bytes_check(const struct bytes *b, struct fault *fault);
/* Drops what is cached of it, so that what is read next comes from the disk. */
void bytes_forget(const struct bytes *b);
/* The first bytes, as many as there are but at most @n; 0 if they cannot be read. To recognise by.
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

/* Little-endian integers that lie anywhere. */
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
