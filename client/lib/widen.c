/*
 * Tokens are stored in 2 or 4 bytes; torch wants int64, llm.c int32. Over restrict pointers the
 * compiler vectorises these loops, and memory bandwidth is the limit.
 */
#include "client/lib/tokend.h"

static void widen_u16(int64_t *restrict to, const uint16_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i];
}

static void widen_u32(int64_t *restrict to, const uint32_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i];
}

void tokend_widen(int64_t *to, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		widen_u16(to, tokens, n);
	else if (token_bytes == 4)
		widen_u32(to, tokens, n);
}

/* One pass: each token is loaded while its cache line is hot. */
static void widen_pair_u16(
	int64_t *restrict to, int64_t *restrict next, const uint16_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = from[i];
		next[i] = from[i + 1];
	}
}

static void widen_pair_u32(
	int64_t *restrict to, int64_t *restrict next, const uint32_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = from[i];
		next[i] = from[i + 1];
	}
}

void tokend_widen_pair(
	int64_t *to, int64_t *next, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		widen_pair_u16(to, next, tokens, n);
	else if (token_bytes == 4)
		widen_pair_u32(to, next, tokens, n);
}

static void widen_int32_u16(int32_t *restrict to, const uint16_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i];
}

/* Returns the bits that any of the tokens has: a branch in the loop would not be vectorised. */
static uint32_t widen_int32_u32(int32_t *restrict to, const uint32_t *restrict from, size_t n)
{
	uint32_t all = 0;

	for (size_t i = 0; i < n; i++) {
		to[i] = (int32_t)from[i];
		all |= from[i];
	}
	return all;
}

int tokend_widen_int32(int32_t *to, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		widen_int32_u16(to, tokens, n);
	else if (token_bytes != 4 || widen_int32_u32(to, tokens, n) > INT32_MAX)
		return TOKEND_EARGUMENT;
	return 0;
}

static void widen_pair_int32_u16(
	int32_t *restrict to, int32_t *restrict next, const uint16_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = from[i];
		next[i] = from[i + 1];
	}
}

static uint32_t widen_pair_int32_u32(
	int32_t *restrict to, int32_t *restrict next, const uint32_t *restrict from, size_t n)
{
	uint32_t all = n ? from[0] : 0;

	for (size_t i = 0; i < n; i++) {
		to[i] = (int32_t)from[i];
		next[i] = (int32_t)from[i + 1];
		all |= from[i + 1];
	}
	return all;
}

int tokend_widen_pair_int32(
	int32_t *to, int32_t *next, const void *tokens, size_t n, uint32_t token_bytes)
{
	if (token_bytes == 2)
		widen_pair_int32_u16(to, next, tokens, n);
	else if (token_bytes != 4 || widen_pair_int32_u32(to, next, tokens, n) > INT32_MAX)
		return TOKEND_EARGUMENT;
	return 0;
}
