/*
 * Reads a flatbuffer that may be damaged or forged. Each offset is compared with the buffer's size
 * before it is followed. Nothing needs to be aligned.
 *
 * Fields are given by their numbers in the table's schema; @field is the name for messages. An
 * absent integer is 0, an absent vector is empty, an absent table has at = 0. On failure all
 * functions return false or NULL and fill fb->fault; its text begins with fb->what.
 */
#ifndef TOKEND_SHARD_FLATBUFFER_H
#define TOKEND_SHARD_FLATBUFFER_H

#include "daemon/shard/bytes.h"

#include <inttypes.h>

struct fb {
	const uint8_t *data;
	uint64_t size;
	const char *what; /* "Arrow footer" */
	struct fault *fault;
};

/* Offsets in the buffer and sizes in bytes of a table and its vtable, all checked. */
struct fb_table {
	uint64_t at, vtable;
	uint16_t bytes, vtable_bytes;
};

struct fb_vector {
	const uint8_t *item; /* the first one */
	uint32_t count;
	uint64_t at; /* its offset */
};

#define fb_refuse(fb, ...) fault_set((fb)->fault, FAULT_DATA, "", __VA_ARGS__)

static inline const uint8_t *fb_bytes(
	const struct fb *fb, uint64_t at, uint64_t n, const char *field)
{
	if (at <= fb->size && n <= fb->size - at)
		return fb->data + at;
	fb_refuse(fb, "%s: %s is at byte %" PRIu64 ", outside its %" PRIu64 " bytes", fb->what,
		field, at, fb->size);
	return NULL;
}

/* Follows the offset that is stored at @at, relative to its own position. */
static inline bool fb_follow(const struct fb *fb, uint64_t at, const char *field, uint64_t *to)
{
	const uint8_t *p = fb_bytes(fb, at, 4, field);

	*to = p ? at + bytes_u32(p) : 0;
	return p && fb_bytes(fb, *to, 4, field);
}

static inline bool fb_table_at(
	const struct fb *fb, uint64_t at, const char *field, struct fb_table *to)
{
	const uint8_t *p = fb_bytes(fb, at, 4, field), *v;

	if (!p)
		return false;
	/* An offset below 0 wraps around to one that is too large. */
	uint64_t vtable = at - (uint64_t)(int64_t)(int32_t)bytes_u32(p);

	if (!(v = fb_bytes(fb, vtable, 4, field)))
		return false;
	*to = (struct fb_table){at, vtable, bytes_u16(v + 2), bytes_u16(v)};
	if (to->vtable_bytes < 4 || to->bytes < 4)
		return fb_refuse(fb,
			"%s: %s has a table of %u bytes, and a vtable of %u; must be "
			"at least 4",
			fb->what, field, to->bytes, to->vtable_bytes);
	return fb_bytes(fb, vtable, to->vtable_bytes, field) && fb_bytes(fb, at, to->bytes, field);
}

/* Reads the root table. @at: where the root's offset is stored. */
static inline bool fb_root(const struct fb *fb, uint64_t at, struct fb_table *to)
{
	return fb_follow(fb, at, "its root", &at) && fb_table_at(fb, at, "its root", to);
}

/* Sets *@at to the offset of field @id, of @n bytes; 0: it is absent. */
static inline bool fb_field(const struct fb *fb, const struct fb_table *table, unsigned id,
	uint32_t n, const char *field, uint64_t *at)
{
	unsigned slot = 4 + 2 * id;
	uint16_t offset =
		slot + 2 > table->vtable_bytes ? 0 : bytes_u16(fb->data + table->vtable + slot);

	*at = offset ? table->at + offset : 0;
	return offset == 0 || (offset >= 4 && offset + n <= table->bytes) ||
	       fb_refuse(fb, "%s: %s is at byte %u of its table; must be within bytes 4 to %u",
		       fb->what, field, offset, table->bytes);
}

/* Reads a signed integer of @n bytes: 1, 2, 4 or 8. */
static inline bool fb_integer(const struct fb *fb, const struct fb_table *table, unsigned id,
	uint32_t n, const char *field, int64_t *value)
{
	uint64_t at;

	*value = 0;
	if (!fb_field(fb, table, id, n, field, &at))
		return false;
	const uint8_t *p = fb->data + at;

	if (at > 0)
		*value = n == 8	  ? (int64_t)bytes_u64(p)
			 : n == 4 ? (int32_t)bytes_u32(p)
			 : n == 2 ? (int16_t)bytes_u16(p)
				  : (int8_t)*p;
	return true;
}

static inline bool fb_table(const struct fb *fb, const struct fb_table *table, unsigned id,
	const char *field, struct fb_table *to)
{
	uint64_t at;

	*to = (struct fb_table){0};
	if (!fb_field(fb, table, id, 4, field, &at))
		return false;
	return at == 0 || (fb_follow(fb, at, field, &at) && fb_table_at(fb, at, field, to));
}

/* A vector of items of @item bytes; strings have items of 1 byte, vectors of tables of 4. */
static inline bool fb_vector(const struct fb *fb, const struct fb_table *table, unsigned id,
	uint32_t item, const char *field, struct fb_vector *to)
{
	uint64_t at;

	*to = (struct fb_vector){0};
	if (!fb_field(fb, table, id, 4, field, &at))
		return false;
	if (at == 0)
		return true;
	if (!fb_follow(fb, at, field, &at))
		return false;
	*to = (struct fb_vector){fb->data + at + 4, bytes_u32(fb->data + at), at + 4};
	return fb_bytes(fb, at + 4, (uint64_t)to->count * item, field);
}

/* Reads item @i (< count) of a vector of tables. */
static inline bool fb_item(const struct fb *fb, const struct fb_vector *vector, uint32_t i,
	const char *field, struct fb_table *to)
{
	uint64_t at;

	return fb_follow(fb, vector->at + 4 * (uint64_t)i, field, &at) &&
	       fb_table_at(fb, at, field, to);
}

#endif
