/*
 * The types that tokens are stored in.
 */
#ifndef TOKEND_SHARD_TYPES_H
#define TOKEND_SHARD_TYPES_H

#include <stdbool.h>
#include <stdint.h>

enum shard_type { /* in this order: shard_type_bytes() and shard_type_signed() rely on it */
	SHARD_U8,
	SHARD_I8,
	SHARD_U16,
	SHARD_I16,
	SHARD_U32,
	SHARD_I32,
	SHARD_U64,
	SHARD_I64
};

/* The width of a token in bytes: 1, 2, 4 or 8. */
static inline uint32_t shard_type_bytes(enum shard_type type)
{
	return UINT32_C(1) << (type / 2);
}

static inline bool shard_type_signed(enum shard_type type)
{
	return type % 2 == 1;
}

const char *shard_type_name(enum shard_type type); /* "u16" */
/* Sets *@type to the type called @name. Returns false if there is none. */
bool shard_type(const char *name, enum shard_type *type);

#endif
