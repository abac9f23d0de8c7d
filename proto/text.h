/* Characters that may be shown, or written to a log. */
#ifndef TOKEND_TEXT_H
#define TOKEND_TEXT_H

/* As text_character(), for all but printable ASCII. */
unsigned text_other_character(const char *text);

/* Bytes of the first character of @text; 0 if @text is empty, or begins with a control character
 * (also U+0080 to U+009F) or with bytes that are not UTF-8. */
static inline unsigned text_character(const char *text)
{
	return *text >= ' ' && *text < 0x7f ? 1 : text_other_character(text);
}

#endif
