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

/* As many words as fit a line, but at least one. "[--count N]" is one word. */
const char *text_wrap(const char *text, size_t indent, char to[WRAPPED_BYTES])
{
	size_t column = indent, since = 0; /* since: columns after the last blank */
	char *out = to, *blank = NULL;
	int depth = 0;

	for (; *text; text++) {
		assert(out + indent + 2 < to + WRAPPED_BYTES);
		depth += (*text == '[') - (*text == ']');
		bool ends = *text == ' ' && depth == 0,
		     counts = ((unsigned char)*text & 0xc0) != 0x80;

		blank = ends ? out : blank;
		since = ends ? 0 : since + counts;
		column += counts;
		*out++ = *text;
		if (column <= WRAP_COLUMNS || !blank)
			continue;
		memmove(blank + 1 + indent, blank + 1, (size_t)(out - blank - 1));
		*blank = '\n';
		memset(blank + 1, ' ', indent);
		out += indent;
		column = indent + since;
		blank = NULL;
	}
	*out++ = '\n';
	*out = 0;
	return to;
}
