#include "daemon/reader/documents.h"

#include <assert.h>
#include <stdbool.h>

/* Most tokens are not an eos: a block without one is skipped, with vector instructions. */
enum { BLOCK = 64 };

#define FIND(width, type)                                                                          \
	static bool any_##width(const type *tokens, type eos)                                      \
	{                                                                                          \
		type any = 0;                                                                      \
                                                                                                   \
		for (unsigned i = 0; i < BLOCK; i++)                                               \
			any |= (type)(tokens[i] == eos);                                           \
		return any;                                                                        \
	}                                                                                          \
                                                                                                   \
	static uint32_t find_##width(uint32_t *start, const type *tokens, uint32_t n, type eos)    \
	{                                                                                          \
		uint32_t found = 0;                                                                \
                                                                                                   \
		for (uint32_t at = 0, end; at < n; at = end) {                                     \
			end = n - at < BLOCK ? n : at + BLOCK;                                     \
			if (end - at == BLOCK && !any_##width(tokens + at, eos))                   \
				continue;                                                          \
			for (uint32_t i = at; i < end; i++) {                                      \
				start[found] = i + 1;                                              \
				found += tokens[i] == eos;                                         \
			}                                                                          \
		}                                                                                  \
		return found;                                                                      \
	}

FIND(u16, uint16_t)
FIND(u32, uint32_t)

uint32_t documents_find(
	uint32_t *start, const void *tokens, uint32_t n, uint32_t token_bytes, uint32_t eos)
{
	assert(token_bytes == 2 || token_bytes == 4);
	if (n == 0)
		return 0;
	if (token_bytes == 4)
		return find_u32(start, tokens, n - 1, eos);
	return eos <= UINT16_MAX ? find_u16(start, tokens, n - 1, (uint16_t)eos) : 0;
}
