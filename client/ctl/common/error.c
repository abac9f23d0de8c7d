#include "client/ctl/common/error.h"

#include "proto/fault.h"
#include "proto/phrases.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

uint64_t ctl_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t ctl_clock_ms(void)
{
	return ctl_clock_ns() / 1000000;
}

bool ctl_grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* it is full at 0, 1, 2, 4, … items */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	*array = more;
	return true;
}
