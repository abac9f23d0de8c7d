#include "client/lib/warn.h"

#include "client/lib/wait.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define SECOND (1000 * WAIT_MS)

enum { WARNINGS = 3 };

static const int64_t after[WARNINGS] = {2 * SECOND, 10 * SECOND, 60 * SECOND};

void warn_begin(struct warnings *w, int64_t since)
{
	*w = (struct warnings){.since = since};
}

int64_t warn_at(const struct warnings *w)
{
	return w->next < WARNINGS ? w->since + after[w->next] : INT64_MAX;
}

bool warn_due(struct warnings *w)
{
	int64_t now = wait_now();
	bool due = now >= warn_at(w);

	while (now >= warn_at(w))
		w->next++;
	return due;
}

int64_t warn_waited(const struct warnings *w)
{
	return (wait_now() - w->since) / SECOND;
}

int warn_say(struct tokend *t, struct warnings *w, const char *format, ...)
{
	char line[1400];
	va_list args;

	if (!t->call.warn)
		return 0;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	w->said = true;
	return t->call.warn(t->call.warn_context, line)
		       ? handle_fail(t, TOKEND_EAGAIN, "", "interrupted")
		       : 0;
}

int warn_over(struct tokend *t, struct warnings *w)
{
	if (!w->said)
		return 0;

	int r = warn_say(t, w, "socket: waited %" PRId64 " s for the daemon at %s; goes on",
		warn_waited(w), t->socket);

	w->said = false;
	return r;
}
