/*
 * From stored tokens to the served width.
 */
#ifndef TOKEND_SHARD_CONVERT_H
#define TOKEND_SHARD_CONVERT_H

#include "daemon/shard/types.h"

/*
 * Converts @n tokens of @type at @from, which need not be aligned, to @token_bytes (2 or 4) each at
 * @to. False: some do not fit it; @to may have been written to.
 */
bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to);
/*
 * The first of @n tokens that does not fit @token_bytes. Returns its index, or @n: all fit.
 * *@value: it, sign-extended where its type is signed.
 */
uint64_t convert_first_unfit(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, uint64_t *value);

#endif
