/*
 * MessagePack in fixed memory, over msgpack-c's header-only templates.
 *
 * Packing writes into the caller's buffer. Unpacking turns a buffer into a flat list of values in
 * document order: a map of n pairs is one VALUE_MAP followed by its 2n keys and values. Nothing is
 * allocated or copied: texts and bytes point into the buffer.
 */
#ifndef TOKEND_PACK_H
#define TOKEND_PACK_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pack {
	char *bytes;
	size_t capacity;
	size_t length;
	bool full; /* a value did not fit; nothing after it is written */
};

static inline struct pack pack_into(void *bytes, size_t capacity)
{
	assert(bytes || capacity == 0);
	return (struct pack){.bytes = bytes, .capacity = capacity};
}

void pack_map(struct pack *pack, uint32_t pairs);
void pack_array(struct pack *pack, uint32_t items);
void pack_uint(struct pack *pack, uint64_t value);
void pack_text(struct pack *pack, const char *text, size_t n);
void pack_bytes(struct pack *pack, const void *bytes, size_t n);

enum value_type {
	VALUE_OTHER, /* nil, a bool, a number below 0, a float: no format of ours has them */
	VALUE_UINT,
	VALUE_TEXT,
	VALUE_BYTES,
	VALUE_ARRAY,
	VALUE_MAP,
};

struct value {
	enum value_type type;
	uint32_t count; /* bytes of a text, items of an array, pairs of a map */
	union {
		uint64_t number;
		const char *bytes;
	};
};

/* Returns the number of values written to @values, ≥ 1. -1: the bytes are not MessagePack, are cut
 * short or followed by more, nested deeper than LIMIT_DEPTH, or more than @max values. */
int unpack(const void *bytes, size_t n, struct value *values, size_t max);
/* The same, but more bytes may follow: *@used is the number of bytes read. */
int unpack_first(const void *bytes, size_t n, struct value *values, size_t max, size_t *used);

/* Returns the value after @value and all that it contains; at most @end. */
const struct value *value_skip(const struct value *value, const struct value *end);
/* True if @value is the text @text. */
bool value_is(const struct value *value, const char *text);

#endif
