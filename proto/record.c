#include "proto/record.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

bool record_is_beginning(const void *entry, size_t n)
{
	assert(n <= RECORD_ENTRY_BYTES);
	const uint64_t plain[2] = {htole64(RECORD_BEGIN), htole64(RECORD_VERSION)};
	const uint64_t pass[2] = {htole64(RECORD_BEGIN), htole64(RECORD_PASS)};

	return memcmp(entry, plain, n) == 0 || memcmp(entry, pass, n) == 0;
}

static uint64_t load(const unsigned char *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return le64toh(word);
}

static void add_words(uint64_t *lane, const unsigned char *bytes)
{
	for (size_t i = 0; i < 4; i++) {
		lane[i] = (lane[i] ^ load(bytes + 8 * i)) * ORDER_MUL_1;
		lane[i] ^= lane[i] >> 32;
	}
}

uint64_t record_checksum(uint64_t position, const void *tokens, size_t bytes)
{
	const unsigned char *at = tokens;
	unsigned char last[32] = {0};
	uint64_t lane[4] = {0};
	size_t n = bytes;

	for (; n >= sizeof(last); n -= sizeof(last), at += sizeof(last))
		add_words(lane, at);
	if (n > 0) {
		memcpy(last, at, n);
		add_words(lane, last);
	}
	return order_derive(position, bytes, lane[0], lane[1], lane[2], lane[3]);
}

uint64_t record_identity(const struct cursor *cursor)
{
	return order_derive(cursor->seed, order_name_hash(cursor->stream, strlen(cursor->stream)),
		cursor->seq_len, cursor->extra, cursor->stride);
}
