#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void log_line(enum log_level level, const char *format, ...)
{
	char line[2048];
	int n = getenv("JOURNAL_STREAM") ? snprintf(line, sizeof(line), "<%d>", level)
					 : snprintf(line, sizeof(line), "tokend: ");
	va_list args;

	va_start(args, format);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	/* Much of it a client wrote: it gets no say in where a line ends. */
	for (int i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[n++] = '\n';
	/* One write a line, so that lines of several processes do not mix. A log that cannot be written has
	 * nobody to tell. */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

bool log_why(char *why, size_t why_bytes, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, why_bytes, format, args);
	va_end(args);
	return false;
}
