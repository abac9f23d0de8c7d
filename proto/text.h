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

enum { WRAP_COLUMNS = 100 };

/* Bytes of the first line of @text, of at most @columns, if it is broken at blanks. */
size_t text_line(const char *text, size_t columns);

#endif
