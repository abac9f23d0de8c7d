/*
 * Reads flatbuffers from a file that may be damaged or forged. Each offset is compared with the
 * buffer's size before it is followed. Nothing needs to be aligned. Only FB_WINDOW bytes are in
 * memory at a time, whatever the buffer's size.
 *
 * Fields are given by their numbers in the table's schema; @field is the name for messages. An
 * absent integer is 0, an absent vector is empty, an absent table has at = 0. On failure all
 * functions return false and fill fb->fault; its text begins with fb->what.
 */
#ifndef TOKEND_SHARD_FLATBUFFER_H
#define TOKEND_SHARD_FLATBUFFER_H

#include "daemon/shard/bytes.h"

#include <inttypes.h>
#include <string.h>

enum {
	FB_WINDOW = 4096,
	FB_STEP = 1024, /* windows begin at multiples of it: a vtable is usually shortly before its
			   table */
};

struct fb {
	const struct bytes *b;
	uint64_t begin, size; /* the buffer's range in the source */
	const char *what;     /* "Arrow footer" */
	struct fault *fault;
	uint64_t window_at; /* offset in the buffer */
	uint32_t window_bytes;
	uint8_t window[FB_WINDOW];
};

/* Offsets in the buffer and sizes in bytes of a table and its vtable, all checked. */
struct fb_table {
	uint64_t at, vtable;
	uint16_t bytes, vtable_bytes;
};

struct fb_vector {
	uint64_t at; /* offset of the first item */
	uint32_t count;
};

#define fb_refuse(fb, ...) fault_set((fb)->fault, FAULT_DATA, "", __VA_ARGS__)

static inline void fb_init(struct fb *fb, const struct bytes *b, uint64_t begin, uint64_t size,
	const char *what, struct fault *fault)
{
	fb->b = b;
	fb->begin = begin;
	fb->size = size;
	fb->what = what;
	fb->fault = fault;
	fb->window_at = 0;
	fb->window_bytes = 0;
}

/* Sets *@to to @n bytes (at most FB_STEP) from @at on; valid until the next call. */
static inline bool fb_bytes(
	struct fb *fb, uint64_t at, uint32_t n, const char *field, const uint8_t **to)
{

	if (at > fb->size || n > fb->size - at)
		return fb_refuse(fb, "%s: %s is at byte %" PRIu64 ", outside its %" PRIu64 " bytes",
			fb->what, field, at, fb->size);
	if (at < fb->window_at || at + n > fb->window_at + fb->window_bytes) {
		uint64_t begin = at - at % FB_STEP, left = fb->size - begin;
		uint32_t load = left < FB_WINDOW ? (uint32_t)left : FB_WINDOW;

		fb->window_bytes = 0;
		if (!bytes_read(fb->b, fb->begin + begin, fb->window, load, fb->fault))
			return false;
		fb->window_at = begin;
		fb->window_bytes = load;
	}
	*to = fb->window + (at - fb->window_at);
	return true;
}

/*
 * Sets *@to to the target of the offset that is stored at @at, and checks that it has at least 4
 * bytes. Offsets are relative to their own position.
 */
static inline bool fb_follow(struct fb *fb, uint64_t at, const char *field, uint64_t *to)
{
	const uint8_t *p;

	if (!fb_bytes(fb, at, 4, field, &p))
		return false;
	uint32_t offset = bytes_u32(p);

	*to = at + offset;
	if (offset >= 4 && *to <= fb->size && fb->size - *to >= 4)
		return true;
	return fb_refuse(fb,
		"%s: offset of %s is %" PRIu32 " at byte %" PRIu64
		"; must be at least 4 and stay within its %" PRIu64 " bytes",
		fb->what, field, offset, at, fb->size);
}

static inline bool fb_table_at(struct fb *fb, uint64_t at, const char *field, struct fb_table *to)
{
	const uint8_t *p;

	if (!fb_bytes(fb, at, 4, field, &p))
		return false;
	int64_t back = (int32_t)bytes_u32(p), vtable = (int64_t)at - back;

	if (vtable < 0 || (uint64_t)vtable > fb->size || fb->size - (uint64_t)vtable < 4)
		return fb_refuse(fb,
			"%s: vtable of %s is at byte %" PRId64 ", outside its %" PRIu64 " bytes",
			fb->what, field, vtable, fb->size);
	if (!fb_bytes(fb, (uint64_t)vtable, 4, field, &p))
		return false;
	*to = (struct fb_table){at, (uint64_t)vtable, bytes_u16(p + 2), bytes_u16(p)};
	if (to->vtable_bytes < 4 || to->vtable_bytes > fb->size - to->vtable)
		return fb_refuse(fb,
			"%s: vtable size of %s is %u at byte %" PRIu64
			"; must be at least 4 and stay within its %" PRIu64 " bytes",
			fb->what, field, to->vtable_bytes, to->vtable, fb->size);
	if (to->bytes < 4 || to->bytes > fb->size - at)
		return fb_refuse(fb,
			"%s: table size of %s is %u at byte %" PRIu64
			"; must be at least 4 and stay within its %" PRIu64 " bytes",
			fb->what, field, to->bytes, at, fb->size);
	return true;
}

/*
 * Reads the root table. @at: where the root's offset is stored: 0, unless the buffer has a prefix.
 */
static inline bool fb_root(struct fb *fb, uint64_t at, struct fb_table *to)
{
	return fb_follow(fb, at, "its root", &at) && fb_table_at(fb, at, "its root", to);
}

/* Sets *@at to the offset of field @id, of @n bytes; 0: it is absent. */
static inline bool fb_field(struct fb *fb, const struct fb_table *table, unsigned id, uint32_t n,
	const char *field, uint64_t *at)
{
	unsigned slot = 4 + 2 * id;
	const uint8_t *p;

	*at = 0;
	if (slot + 2 > table->vtable_bytes)
		return true;
	if (!fb_bytes(fb, table->vtable + slot, 2, field, &p))
		return false;
	uint16_t offset = bytes_u16(p);

	if (offset == 0)
		return true;
	*at = table->at + offset;
	if (offset >= 4 && offset + n <= table->bytes)
		return true;
	return fb_refuse(fb, "%s: %s is at byte %u of its table; must be within bytes 4 to %u",
		fb->what, field, offset, table->bytes);
}

/* Reads a signed integer of @n bytes: 1, 2, 4 or 8. */
static inline bool fb_integer(struct fb *fb, const struct fb_table *table, unsigned id, uint32_t n,
	const char *field, int64_t *value)
{
	uint64_t at;
	const uint8_t *p;

	*value = 0;
	if (!fb_field(fb, table, id, n, field, &at))
		return false;
	if (at == 0)
		return true;
	if (!fb_bytes(fb, at, n, field, &p))
		return false;
	*value = n == 8	  ? (int64_t)bytes_u64(p)
		 : n == 4 ? (int32_t)bytes_u32(p)
		 : n == 2 ? (int16_t)bytes_u16(p)
			  : (int8_t)*p;
	return true;
}

/* Reads a table; to->at is 0 if it is absent. */
static inline bool fb_table(struct fb *fb, const struct fb_table *table, unsigned id,
	const char *field, struct fb_table *to)
{
	uint64_t at;

	*to = (struct fb_table){0};
	if (!fb_field(fb, table, id, 4, field, &at))
		return false;
	return at == 0 || (fb_follow(fb, at, field, &at) && fb_table_at(fb, at, field, to));
}

/*
 * Reads a vector of items of @item bytes; strings have items of 1 byte, vectors of tables of 4. An
 * absent vector is empty.
 */
static inline bool fb_vector(struct fb *fb, const struct fb_table *table, unsigned id,
	uint32_t item, const char *field, struct fb_vector *to)
{
	uint64_t at;
	const uint8_t *p;

	*to = (struct fb_vector){0};
	if (!fb_field(fb, table, id, 4, field, &at))
		return false;
	if (at == 0)
		return true;
	if (!fb_follow(fb, at, field, &at) || !fb_bytes(fb, at, 4, field, &p))
		return false;
	*to = (struct fb_vector){at + 4, bytes_u32(p)};
	uint64_t most = (fb->size - to->at) / item;

	return to->count <= most || fb_refuse(fb,
					    "%s: %s has %" PRIu32 " items of %" PRIu32
					    " bytes; the bytes after it hold at most %" PRIu64,
					    fb->what, field, to->count, item, most);
}

/* Reads item @i (< count) of a vector of tables. */
static inline bool fb_item(struct fb *fb, const struct fb_vector *vector, uint32_t i,
	const char *field, struct fb_table *to)
{
	uint64_t at;

	return fb_follow(fb, vector->at + 4 * (uint64_t)i, field, &at) &&
	       fb_table_at(fb, at, field, to);
}

#endif
