/* Converts tokens from their stored type to the served width. */
#ifndef TOKEND_SHARD_CONVERT_H
#define TOKEND_SHARD_CONVERT_H

#include "daemon/shard/types.h"

/*
 * Converts @n tokens of @type at @from, which need not be aligned, to @token_bytes (2 or 4) each at
 * @to. Returns false if a token does not fit; @to may have been written to.
 */
bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to);
/*
 * Returns the index of the first of @n tokens that does not fit @token_bytes, or @n if all fit.
 * *@value is that token, sign-extended if its type is signed.
 */
uint64_t convert_first_unfit(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, uint64_t *value);

#endif
