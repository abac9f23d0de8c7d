#include "client/ctl/doctor/report.h"

#include <stdarg.h>
#include <stdio.h>

enum { CHECK_WIDTH = 9 };

static void put(
	struct doctor *d, const char *result, const char *check, const char *text, const char *fix)
{
	if (d->json) {
		ctl_put(&d->out, "{\"check\":");
		ctl_put_string(&d->out, check);
		ctl_put(&d->out, ",\"result\":");
		ctl_put_string(&d->out, result);
		ctl_put(&d->out, ",\"text\":");
		ctl_put_string(&d->out, text);
		ctl_put(&d->out, ",\"fix\":");
		if (fix)
			ctl_put_string(&d->out, fix);
		else
			ctl_put(&d->out, "null");
		ctl_put(&d->out, "}\n");
		return;
	}
	ctl_put_left(&d->out, result, 5);
	ctl_put_left(&d->out, check, CHECK_WIDTH);
	ctl_put_left(&d->out, text, 0);
	if (fix) {
		ctl_put(&d->out, "; ");
		ctl_put_left(&d->out, fix, 0);
	}
	ctl_put(&d->out, "\n");
}

void doctor_line(struct doctor *d, const char *result, const char *check, const char *fix,
	const char *text, ...)
{
	char line[2 * LIMIT_TEXT_BYTES];
	va_list arguments;

	va_start(arguments, text);
	vsnprintf(line, sizeof(line), text, arguments);
	va_end(arguments);
	put(d, result, check, line, fix);
	d->fixes += fix != NULL;
}
