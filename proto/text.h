/* Characters that may be shown, or written to a log; lines of help texts. */
#ifndef TOKEND_TEXT_H
#define TOKEND_TEXT_H

#include <stddef.h>

/* As text_character(), for all but printable ASCII. */
unsigned text_other_character(const char *text);

/* Bytes of the first character of @text; 0 if @text is empty, or begins with a control character
 * (also U+0080 to U+009F) or with bytes that are not UTF-8. */
static inline unsigned text_character(const char *text)
{
	return *text >= ' ' && *text < 0x7f ? 1 : text_other_character(text);
}

enum { WRAP_COLUMNS = 100, WRAPPED_BYTES = 4096 };

/* Breaks @text at blanks, so that it can follow @indent columns of a line. Each line but the first
 * begins with as many spaces; the last one ends, too. It must fit. Returns @to. */
const char *text_wrap(const char *text, size_t indent, char to[WRAPPED_BYTES]);

#endif
