#include "proto/record.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

bool record_is_beginning(const void *entry, size_t n)
{
	const uint64_t marker = htole64(RECORD_BEGIN);
	const unsigned char *kind = (const unsigned char *)entry + sizeof(marker);

	assert(n <= RECORD_ENTRY_BYTES);
	if (memcmp(entry, &marker, n < sizeof(marker) ? n : sizeof(marker)) != 0)
		return false;
	if (n <= sizeof(marker))
		return true;

	/* The lowest byte has the flags. */
	const uint64_t want = htole64(RECORD_KIND);

	return kind[0] <= (RECORD_FIRST | RECORD_PASS) &&
	       memcmp(kind + 1, (const unsigned char *)&want + 1, n - sizeof(marker) - 1) == 0;
}

static unsigned char *put_word(unsigned char *to, uint64_t word)
{
	word = htole64(word);
	memcpy(to, &word, sizeof(word));
	return to + sizeof(word);
}

void record_put_beginning(
	void *entries, unsigned kind, const struct record_begin *begin, const void *cursor)
{
	uint64_t word[2 * RECORD_WORDS];
	unsigned char *to = entries;
	const unsigned char *from = cursor;

	assert(kind <= (RECORD_FIRST | RECORD_PASS));
	assert(begin->cursor_bytes <= LIMIT_CURSOR_BYTES);
	memcpy(word, begin, sizeof(word));
	to = put_word(put_word(to, RECORD_BEGIN), RECORD_KIND | kind);
	for (size_t i = 0; i < 2 * RECORD_WORDS; i++)
		to = put_word(to, word[i]);
	for (size_t left = begin->cursor_bytes; left > 0; to += RECORD_ENTRY_BYTES) {
		unsigned char frame[RECORD_FRAME_BYTES] = {0};
		size_t n = left < sizeof(frame) ? left : sizeof(frame);

		memcpy(frame, from, n);
		memcpy(to, frame, 7);
		to[7] = 0;
		memcpy(to + 8, frame + 7, 8);
		from += n;
		left -= n;
	}
}

static uint64_t load(const unsigned char *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return le64toh(word);
}

void record_get_beginning(struct record_begin *begin, const void *entries)
{
	uint64_t word[2 * RECORD_WORDS];
	const unsigned char *from = entries;

	for (size_t i = 0; i < 2 * RECORD_WORDS; i++)
		word[i] = load(from + i * sizeof(*word));
	memcpy(begin, word, sizeof(*begin));
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
