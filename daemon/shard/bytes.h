/*
 * A source of bytes: a file, an object in a store, or the contents of a compressed one. Formats
 * read through this interface, so they need not distinguish them.
 *
 * All functions block, except bytes_read() without @fault: call them from pool threads and tools,
 * never from the loop or the data thread. Several threads may read one source at once. Fault texts
 * are without the path.
 */
#ifndef TOKEND_BYTES_H
#define TOKEND_BYTES_H

#include "daemon/store/store.h"
#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct bytes;
struct frames;
struct stat;

/*
 * Shards in a store. The path of such a shard is its URL, and there is no descriptor. Nothing is
 * probed for: a store may answer 403 for a missing key, and a key that was added later must not
 * change a dataset.
 */
struct objects {
	struct stores *stores;
	/* Fills @object; its strings live as long as @context. False: there is none. */
	bool (*find)(const void *context, const char *url, struct object *object);
	const void *context;
};

enum { BYTES_HEAD = 1024 };

struct bytes {
	const char *path;     /* borrowed; valid until the shard is open */
	uint64_t size;	      /* of the contents, after decompression */
	uint64_t stored;      /* of the file or object */
	bool plain;	      /* not compressed: read() is pread(fd), or a read of the object */
	uint64_t frame_bytes; /* of the largest compressed frame, decoded: to read one byte of it */
	uint64_t index_bytes; /* memory of the frames' index */
	int fd;		      /* -1: an object */
	bool owns_fd;
	uint64_t id;	     /* bytes_id(), or of an object a hash of its size and ETag */
	uint64_t mtime_ns;   /* of a file */
	const uint8_t *head; /* [BYTES_HEAD], with zeros after its end; while a shard is opened */
	const struct objects *objects; /* it and its side files are there; NULL: files */
	struct object *object;	       /* NULL: a file */
};

/*
 * Opens a file as it is stored, even if it is compressed: @fd, which the caller closes after the
 * source, or the one at @path if that is -1. With @objects, opens the object at the URL @path,
 * without a GET. On failure returns NULL and @fault; FAULT_DATA: not a regular file, or no such
 * object.
 */
struct bytes *bytes_open(
	int fd, const char *path, const struct objects *objects, struct fault *fault);
/* Opens a side file of @shard by its path. The source owns its descriptor. *@b is NULL if there is
 * no such file. Fault texts begin with the file's name. */
bool bytes_open_side(
	const struct bytes *shard, const char *path, struct bytes **b, struct fault *fault);
void bytes_close(struct bytes *b); /* NULL: does nothing */
/* The shard is open: of an object, GETs fetch no more than what is read. NULL: does nothing. */
void bytes_opened(const struct bytes *b);
/* Whether a side file is unchanged since it was opened. False: @fault; ESTALE: open it again. */
bool bytes_settled(const struct bytes *b, struct fault *fault);
/* A hash of a file's inode, size and mtime, to notice that it was replaced; never 0. */
uint64_t bytes_id(const struct stat *st);
/* The same of the file or object at @path; 0: there is none; 1: it cannot be looked at; 2: there is
 * a link to a lost one. */
uint64_t bytes_id_at(const struct objects *objects, const char *path);

/*
 * Reads exactly @n bytes from offset @at. False: @fault. FAULT_IO with errno (EIO also if the file
 * was truncated); FAULT_DATA: beyond the end, or damaged compressed data; FAULT_MEMORY. If @fault
 * is NULL, it does not wait: false: they are not in memory, or another call will tell.
 */
bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
/* Reads them to new memory, with a 0 after them; free() it. NULL: @fault. */
void *bytes_load(const struct bytes *b, uint64_t at, size_t n, struct fault *fault);
/* Like bytes_read() of the first @n bytes, without decoding the rest of a large frame. */
bool bytes_begin(const struct bytes *b, void *to, size_t n, struct fault *fault);

/* ---- zstd-compressed files (zstd.c) ---- */

/* Whether the file is compressed, by its first bytes or its name (*.zst, *.zstd). */
bool zstd_recognise(const struct bytes *file);
/* Opens the contents of @file, which it takes over, and closes on failure too. @frames: the cache
 * of decoded frames; NULL: the source has its own, of one frame. @budget_bytes: the largest decoded
 * size of a frame; 0: 256 MiB. NULL: @fault. */
struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault);

/*
 * A daemon's one cache of decoded frames. A frame is decoded once, however many threads wait for
 * it. The least recently used ones make room for a new one; those of a file go when it is closed.
 * The budget covers also compressed bytes and decoders. NULL: out of memory.
 */
struct frames *frames_new(uint64_t budget_bytes);
void frames_free(struct frames *frames); /* after every source that uses it; NULL: does nothing */
uint64_t frames_bytes(struct frames *frames); /* in use now */
/* A stream's share of the cache, which its sources get instead. It may decode one frame at any
 * time, even beyond the budget, and others in half of what the other shares leave of it. So storage
 * that hangs stops no other stream. Free shares before the cache. NULL: out of memory. */
struct frames *frames_share(struct frames *frames);

/* A damaged frame is read again once, from the disk: a bit may have flipped on the way. If it is
 * good then, this is called, in any thread, unless it is NULL. Set it before starting threads. */
typedef void reread_receiver(int fd, uint64_t at, uint64_t n, const char *why);
extern reread_receiver *reread_told;

/* Of bytes.c. @fault: NULL: it must not wait. zstd_head() decodes only the first blocks of a large
 * frame, without caching them or checking its checksum; false: use zstd_read(). */
bool zstd_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault);
bool zstd_head(const struct bytes *b, void *to, size_t n);
void zstd_close(struct bytes *b);

/* ---- names ---- */

const char *bytes_name(const char *path); /* what follows its last slash */
bool bytes_ends_in(const char *path, const char *ending);
/* Where @path's @ending begins, which .zst or .zstd may follow. NULL: it does not end so. */
const char *bytes_ending(const char *path, const char *ending);
/* Writes @path to @to, with @other in place of @ending: "x.bin.zst", ".bin", ".idx" give "x.idx".
 * False: @path does not end so, or the result is too long. */
bool bytes_side_path(
	const char *path, const char *ending, const char *other, char *to, size_t to_bytes);

/* ---- helpers for formats ---- */

/* Makes room for @needed items of @item bytes in an array of *@room. False: out of memory. */
static inline bool bytes_grow(void **array, size_t *room, size_t needed, size_t item)
{
	size_t more = needed + needed / 8 + 8;

	if (needed <= *room)
		return true;
	void *grown = realloc(*array, more * item);

	*array = grown ? grown : *array;
	*room = grown ? more : *room;
	return grown;
}

/* fault_data(fault, text, …): the contents of a file are wrong. Always false. */
#define fault_data(fault, ...) fault_set(fault, FAULT_DATA, "", __VA_ARGS__)

/* Requires that a number of a file is within a range, empty if @most < @least. @what, printf's
 * text: "length of sequence 7". False: @fault. */
__attribute__((format(printf, 5, 6))) bool bytes_check(
	struct fault *fault, int64_t value, uint64_t least, uint64_t most, const char *what, ...);

/* An array of integers in a source, which are read in order, many at a time. */
struct bytes_array {
	const struct bytes *b;
	uint64_t at, count; /* of the items that are not in the chunk */
	uint32_t width;	    /* of an item: 4 or 8 bytes */
	uint32_t begin, end;
	uint8_t chunk[16 << 10];
};

/* The next item, which must exist. False: @fault. */
bool bytes_next(struct bytes_array *array, uint64_t *item, struct fault *fault);

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
