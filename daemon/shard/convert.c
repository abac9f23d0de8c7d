#include "daemon/shard/convert.h"

#include <string.h>

/* ORs all tokens and checks the result once, so that the loops vectorise. */
#define CONVERT(stored, served)                                                                    \
	static bool stored##_to_##served(const void *from, uint64_t n, void *to)                   \
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

CONVERT(uint8, uint16)
CONVERT(int8, uint16)
CONVERT(uint16, uint16)
CONVERT(int16, uint16)
CONVERT(uint32, uint16)
CONVERT(int32, uint16)
CONVERT(uint64, uint16)
CONVERT(int64, uint16)
CONVERT(uint8, uint32)
CONVERT(int8, uint32)
CONVERT(uint16, uint32)
CONVERT(int16, uint32)
CONVERT(uint32, uint32)
CONVERT(int32, uint32)
CONVERT(uint64, uint32)
CONVERT(int64, uint32)

static bool (*const conversions[][2])(const void *from, uint64_t n, void *to) = {
	[SHARD_U8] = {uint8_to_uint16, uint8_to_uint32},
	[SHARD_I8] = {int8_to_uint16, int8_to_uint32},
	[SHARD_U16] = {uint16_to_uint16, uint16_to_uint32},
	[SHARD_I16] = {int16_to_uint16, int16_to_uint32},
	[SHARD_U32] = {uint32_to_uint16, uint32_to_uint32},
	[SHARD_I32] = {int32_to_uint16, int32_to_uint32},
	[SHARD_U64] = {uint64_to_uint16, uint64_to_uint32},
	[SHARD_I64] = {int64_to_uint16, int64_to_uint32},
};

bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to)
{
	return conversions[type][token_bytes == 4](from, n, to);
}

uint64_t convert_first_unfit(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, uint64_t *value)
{
	uint64_t most = token_bytes == 2 ? UINT16_MAX : UINT32_MAX;
	uint32_t width = shard_type_bytes(type);

	for (uint64_t i = 0; i < n; i++) {
		*value = 0;
		memcpy(value, (const char *)from + i * width, width);
		if (shard_type_signed(type)) /* sign-extend */
			*value = (uint64_t)((int64_t)(*value << (64 - 8 * width)) >>
					    (64 - 8 * width));
		if (*value > most)
			return i;
	}
	return n;
}
