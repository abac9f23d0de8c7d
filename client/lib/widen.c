/*
 * Tokens are stored in 2 or 4 bytes; torch wants int64, llm.c int32. Over restrict pointers the
 * compiler vectorises these loops, and memory bandwidth is the limit.
 */
#include "client/lib/tokend.h"

/* These return the bits that any token has: a branch in the loop would not be vectorised. A pair is
 * one pass: each token is loaded while its cache line is hot. */
#define WIDEN(name, wide, narrow)                                                                  \
	static uint32_t name(wide *restrict to, const narrow *restrict from, size_t n)             \
	{                                                                                          \
		uint32_t all = 0;                                                                  \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			to[i] = (wide)from[i];                                                     \
			all |= from[i];                                                            \
		}                                                                                  \
		return all;                                                                        \
	}
#define PAIR(name, wide, narrow)                                                                   \
	static uint32_t name(                                                                      \
		wide *restrict to, wide *restrict next, const narrow *restrict from, size_t n)     \
	{                                                                                          \
		uint32_t all = n ? from[0] : 0;                                                    \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			to[i] = (wide)from[i];                                                     \
			next[i] = (wide)from[i + 1];                                               \
			all |= from[i + 1];                                                        \
		}                                                                                  \
		return all;                                                                        \
	}

WIDEN(u16_to_64, int64_t, uint16_t)
WIDEN(u32_to_64, int64_t, uint32_t)
WIDEN(u16_to_32, int32_t, uint16_t)
WIDEN(u32_to_32, int32_t, uint32_t)
PAIR(u16_to_32_pair, int32_t, uint16_t)
PAIR(u32_to_32_pair, int32_t, uint32_t)

void tokend_widen(int64_t *to, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		u16_to_64(to, tokens, n);
	else if (token_bytes == 4)
		u32_to_64(to, tokens, n);
}

int tokend_widen_int32(int32_t *to, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		u16_to_32(to, tokens, n);
	else if (token_bytes != 4 || u32_to_32(to, tokens, n) > INT32_MAX)
		return TOKEND_EARGUMENT;
	return 0;
}

int tokend_widen_pair_int32(
	int32_t *to, int32_t *next, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		u16_to_32_pair(to, next, tokens, n);
	else if (token_bytes != 4 || u32_to_32_pair(to, next, tokens, n) > INT32_MAX)
		return TOKEND_EARGUMENT;
	return 0;
}
