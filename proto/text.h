/* Characters that may be shown, or written to a log; lines of help texts. */
#ifndef TOKEND_TEXT_H
#define TOKEND_TEXT_H

#include <stdio.h>

/* As text_character(), for all but printable ASCII. */
unsigned text_other_character(const char *text);

/* Bytes of the first character of @text; 0 if @text is empty, or begins with a control character
 * (also U+0080 to U+009F) or with bytes that are not UTF-8. */
static inline unsigned text_character(const char *text)
{
	return *text >= ' ' && *text < 0x7f ? 1 : text_other_character(text);
}

enum { WRAP_COLUMNS = 100 };

/* Puts @text from column @indent on, with all its lines there, none longer than WRAP_COLUMNS. */
void put_wrapped(FILE *to, const char *text, int indent);

#endif
