/*
 * Tokens are stored in 2 or 4 bytes; torch wants int64. Over restrict pointers the compiler
 * vectorises these loops, and memory bandwidth is the limit.
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
