#include "daemon/shard/tokens.h"

#include <stddef.h>

/* Few enough to stay in the L1 cache for the second pass, which looks for the first one above. */
enum { BLOCK_TOKENS = 4096 };

/* Keeps several independent maxima: a single chain of dependent ones takes twice as long. */
#define MOST(name, type, how)                                                                      \
	how static uint32_t name(const type *token, size_t n)                                      \
	{                                                                                          \
		enum { COLUMNS = 128 / sizeof(type) };                                             \
		type most[COLUMNS] = {0};                                                          \
		size_t i = 0;                                                                      \
                                                                                                   \
		for (; n - i >= COLUMNS; i += COLUMNS)                                             \
			for (size_t c = 0; c < COLUMNS; c++)                                       \
				most[c] = token[i + c] > most[c] ? token[i + c] : most[c];         \
		for (; i < n; i++)                                                                 \
			most[0] = token[i] > most[0] ? token[i] : most[0];                         \
		for (size_t c = 1; c < COLUMNS; c++)                                               \
			most[0] = most[c] > most[0] ? most[c] : most[0];                           \
		return most[0];                                                                    \
	}

MOST(most16, uint16_t, )
MOST(most32, uint32_t, )

#ifdef __x86_64__
/* Baseline x86-64 has no unsigned maximum for these widths, and takes three times as long. */
MOST(most16_avx2, uint16_t, __attribute__((target("avx2"))))
MOST(most32_avx2, uint32_t, __attribute__((target("avx2"))))
#endif

uint32_t tokens_most(const void *tokens, uint64_t n, uint32_t token_bytes)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2"))
		return token_bytes == 2 ? most16_avx2(tokens, n) : most32_avx2(tokens, n);
#endif
	return token_bytes == 2 ? most16(tokens, n) : most32(tokens, n);
}

uint32_t tokens_value(const void *tokens, uint64_t i, uint32_t token_bytes)
{
	return token_bytes == 2 ? ((const uint16_t *)tokens)[i] : ((const uint32_t *)tokens)[i];
}

uint64_t tokens_first_above(const void *tokens, uint64_t n, uint32_t token_bytes, uint32_t most)
{
	for (uint64_t at = 0, end; at < n; at = end) {
		end = n - at < BLOCK_TOKENS ? n : at + BLOCK_TOKENS;
		if (tokens_most((const char *)tokens + at * token_bytes, end - at, token_bytes) <=
			most)
			continue;
		for (uint64_t i = at; i < end; i++)
			if (tokens_value(tokens, i, token_bytes) > most)
				return i;
	}
	return n;
}
