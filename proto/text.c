#include "proto/text.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

unsigned text_other_character(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;
	static const struct {
		unsigned char mask, lead;
		uint32_t least;
	} forms[] = {
		{0x80, 0x00, 0x20}, {0xe0, 0xc0, 0xa0}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};

	for (unsigned n = 1; n <= 4; n++) {
		if ((p[0] & forms[n - 1].mask) != forms[n - 1].lead)
			continue;
		uint32_t code = p[0] & (unsigned char)~forms[n - 1].mask;

		for (unsigned i = 1; i < n; i++) {
			if ((p[i] & 0xc0) != 0x80)
				return 0;
			code = code << 6 | (p[i] & 0x3f);
		}
		bool fine = code >= forms[n - 1].least && code != 0x7f && code <= 0x10ffff &&
			    !(code >= 0xd800 && code < 0xe000);
		return fine ? n : 0;
	}
	return 0;
}

/* The bytes of the first line of @text, without the space at which it is broken: as many words as
 * fit @columns, but at least one. "[--count N]" is one word. */
static size_t first_line(const char *text, size_t columns)
{
	size_t column = 0, at = 0, end = 0;
	int depth = 0;

	for (;; at++) {
		depth += (text[at] == '[') - (text[at] == ']');
		if (!text[at] || (text[at] == ' ' && depth == 0)) {
			if (end > 0 && column > columns)
				return end;
			end = at;
		}
		if (!text[at])
			return end;
		column += ((unsigned char)text[at] & 0xc0) != 0x80;
	}
}

const char *text_wrap(const char *text, size_t indent, char to[WRAPPED_BYTES])
{
	size_t at = 0;

	assert(indent < WRAP_COLUMNS);
	for (;;) {
		size_t n = first_line(text, WRAP_COLUMNS - indent);

		assert(at + n + 1 + indent < WRAPPED_BYTES);
		memcpy(to + at, text, n);
		at += n;
		to[at++] = '\n';
		for (text += n; *text == ' ';)
			text++;
		if (!*text)
			break;
		memset(to + at, ' ', indent);
		at += indent;
	}
	to[at] = 0;
	return to;
}
