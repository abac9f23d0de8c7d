/* The types that tokens are stored in, their conversion to the served width, and searches. */
#ifndef TOKEND_SHARD_TOKENS_H
#define TOKEND_SHARD_TOKENS_H

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

/*
 * Converts @n tokens of @type at @from, which need not be aligned, to @token_bytes (2 or 4) each at
 * @to. Returns false if a token does not fit; @to may have been written to.
 */
bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to);

/*
 * Searches for ids that are too large, at the speed of memory. The tokens are in the served width.
 * Another process may write to their memory at the same time, so loops end by the number of tokens,
 * never by their values.
 */

/* The largest of @n tokens of @token_bytes (2 or 4) each; 0 if @n is 0. */
uint32_t tokens_most(const void *tokens, uint64_t n, uint32_t token_bytes);
/* The index of the first of @n tokens that is above @most, or @n if there is none. */
uint64_t tokens_first_above(const void *tokens, uint64_t n, uint32_t token_bytes, uint32_t most);
/* The value of token @i. */
uint32_t tokens_value(const void *tokens, uint64_t i, uint32_t token_bytes);

#endif
