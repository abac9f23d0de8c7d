#include "client/ctl/common/error.h"

#include "proto/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *text, va_list args)
{
	char *line;

	if (vasprintf(&line, text, args) < 0)
		line = NULL;
	fprintf(stderr, "tokctl: %s\n", line ? fault_line(line) : strerror(ENOMEM));
	free(line);
}

void ctl_note(const char *text, ...)
{
	va_list args;

	va_start(args, text);
	say(text, args);
	va_end(args);
}

int ctl_fail(const char *text, ...)
{
	va_list args;

	va_start(args, text);
	say(text, args);
	va_end(args);
	return CTL_FAILED;
}
