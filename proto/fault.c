#include "proto/fault.h"

#include "proto/phrases.h"
#include "proto/text.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

char *fault_line(char *text)
{
	for (char *c = text; *c;) {
		unsigned n = text_character(c);

		if (n == 0)
			*c = '?';
		c += n ? n : 1;
	}
	return text;
}

/* A text is one line, whatever it quotes. */
static void fill(struct fault *fault, enum fault_code code, int error, const char *field,
	const char *format, va_list args)
{
	assert(code > FAULT_NONE && code < FAULT_CODES && field);
	fault->code = code;
	fault->error = error;
	fault->index = FAULT_NO_INDEX;
	fault->passing = false;
	snprintf(fault->field, sizeof(fault->field), "%s", field);
	fault_line(fault->field); /* it may contain a name from a file or a message */
	vsnprintf(fault->text, sizeof(fault->text), format, args);
	fault_line(fault->text);
}

bool(fault_set)(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fill(fault, code, 0, field, format, args);
	va_end(args);
	return false;
}

bool fault_set_passing(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fill(fault, code, 0, field, format, args);
	va_end(args);
	fault->passing = true;
	return false;
}

static enum fault_code code_of_errno(int error)
{
	switch (error) {
	case ENOMEM:
		return FAULT_MEMORY;
	case EMFILE:
	case ENFILE:
		return FAULT_DESCRIPTORS;
	default:
		return FAULT_IO;
	}
}

bool(fault_errno)(struct fault *fault, int error, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fill(fault, code_of_errno(error), error, field, format, args);
	va_end(args);
	fault->passing = fault->code != FAULT_IO;
	return false;
}

bool(fault_memory)(struct fault *fault)
{
	return fault_errno(fault, ENOMEM, "memory", PHRASE_MEMORY);
}

bool(fault_prefix)(struct fault *fault, const char *format, ...)
{
	char text[sizeof(fault->text)];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n < 0)
		return false;
	if ((size_t)n < sizeof(text))
		snprintf(text + n, sizeof(text) - (size_t)n, "%s", fault->text);
	memcpy(fault->text, fault_line(text), sizeof(text));
	return false;
}
