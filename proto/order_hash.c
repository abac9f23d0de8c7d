/* Hashes: derived keys, names, checksums and digests of shard lists. */
#include "proto/order.h"

#include "proto/order_private.h"

#include <assert.h>
#include <string.h>

uint64_t order_name_hash(const char *name, size_t n)
{
	assert(name || n == 0);
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001B3);
	return h;
}

uint64_t order_checksum(const void *bytes, size_t n)
{
	assert(bytes || n == 0);
	const unsigned char *p = bytes;
	uint64_t h = order_mix64(n + ORDER_GOLDEN);

	for (; n > 0; p += 8) {
		size_t take = n < 8 ? n : 8;
		uint64_t word = 0;

		for (size_t i = 0; i < take; i++)
			word |= (uint64_t)p[i] << 8 * i;
		h = order_mix64((h ^ word) + ORDER_GOLDEN);
		n -= take;
	}
	return h;
}

uint64_t order_digest_begin(uint64_t shards)
{
	return order_derive(0, shards);
}

uint64_t order_digest_add(uint64_t digest, const char *path, uint64_t tokens)
{
	assert(path && *path);
	return order_derive(digest, order_name_hash(path, strlen(path)), tokens);
}
