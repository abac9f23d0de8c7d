#include "daemon/shard/format.h"

#include <stddef.h>
#include <string.h>

/* ---- types ---- */

static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};

const char *shard_type_name(enum shard_type type)
{
	return names[type];
}

bool shard_type(const char *name, enum shard_type *type)
{
	for (*type = SHARD_U8; *type <= SHARD_I64; ++*type)
		if (strcmp(name, names[*type]) == 0)
			return true;
	return false;
}

/* ---- conversion ---- */

/* Converts a loop at a time. ORs all tokens and checks the result once, so that it vectorises. */
#define CONVERT(stored, served)                                                                    \
	{                                                                                          \
		typedef stored##_t anywhere __attribute__((aligned(1), may_alias));                \
		const anywhere *in = from;                                                         \
		served##_t *out = to;                                                              \
		stored##_t bits = 0;                                                               \
                                                                                                   \
		for (uint64_t i = 0; i < n; i++) {                                                 \
			bits = (stored##_t)(bits | in[i]);                                         \
			out[i] = (served##_t)in[i];                                                \
		}                                                                                  \
		return ((uint64_t)(int64_t)bits & ~(uint64_t)(served##_t) - 1) == 0;               \
	}
#define CONVERT_FROM(type, stored)                                                                 \
	case type:                                                                                 \
		if (token_bytes == 2)                                                              \
			CONVERT(stored, uint16)                                                    \
		CONVERT(stored, uint32)

bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to)
{
	switch (type) {
		CONVERT_FROM(SHARD_U8, uint8)
		CONVERT_FROM(SHARD_I8, int8)
		CONVERT_FROM(SHARD_U16, uint16)
		CONVERT_FROM(SHARD_I16, int16)
		CONVERT_FROM(SHARD_U32, uint32)
		CONVERT_FROM(SHARD_I32, int32)
		CONVERT_FROM(SHARD_U64, uint64)
		CONVERT_FROM(SHARD_I64, int64)
	}
	return false;
}

/* ---- searches ---- */

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
	uint64_t i = tokens_most(tokens, n, token_bytes) > most ? 0 : n;

	while (i < n && tokens_value(tokens, i, token_bytes) <= most)
		i++;
	return i;
}
