/*
 * Searches tokens for ids that are too large, at the speed of memory. The tokens are in the served
 * width. Another process may write to their memory at the same time, so loops end by the number of
 * tokens, never by their values.
 */
#ifndef TOKEND_SHARD_TOKENS_H
#define TOKEND_SHARD_TOKENS_H

#include <stdint.h>

/* The largest of @n tokens of @token_bytes (2 or 4) each; 0 if @n is 0. */
uint32_t tokens_most(const void *tokens, uint64_t n, uint32_t token_bytes);
/* The index of the first of @n tokens that is above @most, or @n if there is none. */
uint64_t tokens_first_above(const void *tokens, uint64_t n, uint32_t token_bytes, uint32_t most);
/* The value of token @i. */
uint32_t tokens_value(const void *tokens, uint64_t i, uint32_t token_bytes);

#endif
