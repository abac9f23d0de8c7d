#include "client/ctl/common/error.h"

#include "proto/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *kept; /* where lines go instead of stderr; NULL: to stderr */
static size_t kept_bytes;

void ctl_keep_errors(char *line, size_t bytes)
{
	kept = line;
	kept_bytes = bytes;
}

static void say(const char *text, va_list args)
{
	char *line;

	if (vasprintf(&line, text, args) < 0)
		line = NULL;

	const char *one = line ? fault_line(line) : strerror(ENOMEM);

	if (kept)
		snprintf(kept, kept_bytes, "%s", one);
	else
		fprintf(stderr, "tokctl: %s\n", one);
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
