#include "daemon/config/refuse.h"

#include "proto/phrases.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool config_refuse(struct fault *fault, const char *file, int line, const char *field, int index,
	const char *text, ...)
{
	va_list args;
	size_t n;

	fault_set(fault, FAULT_ARGUMENT, field, "%s:%d: %s: ", file, line,
		field[0] ? field : "config");
	fault->index = index;
	n = strlen(fault->text);
	va_start(args, text);
	vsnprintf(fault->text + n, sizeof(fault->text) - n, text, args);
	va_end(args);
	return false;
}

bool config_refuse_memory(
	struct fault *fault, const char *file, int line, const char *field, int index)
{
	config_refuse(fault, file, line, field, index, PHRASE_MEMORY);
	fault->code = FAULT_MEMORY;
	return false;
}
