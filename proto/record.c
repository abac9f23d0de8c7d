#include "proto/record.h"

#include <assert.h>
#include <string.h>

bool record_is_beginning(const void *entry, size_t n)
{
	uint64_t marker[] = {RECORD_BEGIN, RECORD_KIND};
	const unsigned char *bytes = entry;

	assert(n <= sizeof(marker));
	if (n > 8 && bytes[8] <= (RECORD_FIRST | RECORD_PASS))
		marker[1] |= bytes[8];
	return memcmp(entry, marker, n) == 0;
}

void record_put_beginning(
	void *entries, unsigned kind, const struct record_begin *begin, const void *cursor)
{
	const uint64_t marker[] = {RECORD_BEGIN, RECORD_KIND | kind};
	unsigned char *to = entries;
	const unsigned char *from = cursor;

	assert(kind <= (RECORD_FIRST | RECORD_PASS));
	assert(begin->cursor_bytes <= LIMIT_CURSOR_BYTES);
	memcpy(to, marker, sizeof(marker));
	memcpy(to + sizeof(marker), begin, sizeof(*begin));
	to += sizeof(marker) + sizeof(*begin);
	for (size_t n = begin->cursor_bytes; n > 0; to += RECORD_ENTRY_BYTES) {
		size_t low = n < 7 ? n : 7, high = n - low < 8 ? n - low : 8;

		memset(to, 0, RECORD_ENTRY_BYTES);
		memcpy(to, from, low);
		memcpy(to + 8, from + low, high);
		from += low + high;
		n -= low + high;
	}
}

void record_get_cursor(void *cursor, size_t n, const void *entries)
{
	const unsigned char *from = entries;
	unsigned char *to = cursor;

	assert(n <= LIMIT_CURSOR_BYTES);
	for (; n > 0; from += RECORD_ENTRY_BYTES) {
		size_t low = n < 7 ? n : 7, high = n - low < 8 ? n - low : 8;

		memcpy(to, from, low);
		memcpy(to + low, from + 8, high);
		to += low + high;
		n -= low + high;
	}
}

static void add_words(uint64_t *lane, const unsigned char *bytes)
{
	uint64_t word[4];

	memcpy(word, bytes, sizeof(word));
	for (size_t i = 0; i < 4; i++) {
		lane[i] = (lane[i] ^ word[i]) * ORDER_MUL_1;
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
