/* Messages and progress on stderr; time and memory. */
#include "client/ctl/common/ctl.h"
#include "proto/fault.h"
#include "proto/phrases.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int ctl_fail(const char *text, ...)
{
	va_list args;
	char *line;

	va_start(args, text);
	if (vasprintf(&line, text, args) < 0)
		line = NULL;
	va_end(args);
	fprintf(stderr, "tokctl: %s\n", line ? fault_line(line) : strerror(ENOMEM));
	free(line);
	return CTL_FAILED;
}

uint64_t ctl_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool ctl_grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* it is full at 0, 1, 2, 4, … items */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more)
		return ctl_error(PHRASE_MEMORY);
	*array = more;
	return true;
}

/* ---- progress ---- */

enum { EVERY_MS = 100 }; /* a redraw, by the thread that adds work when it is due */

static void draw(const struct ctl_progress *p)
{
	double done = (double)p->done, total = (double)p->total;
	char line[256];
	int n = snprintf(line, sizeof(line), "%.120s  %s", p->what, si(done, p->unit).text);

	if (total > 0)
		snprintf(line + n, sizeof(line) - (size_t)n, " of %s, %.0f %%",
			si(total, p->unit).text, 100 * done / total);
	dprintf(STDERR_FILENO, "\r\033[K%s", fault_line(line));
}

void ctl_progress_begin(struct ctl_progress *p, const char *what, const char *unit, uint64_t total)
{
	*p = (struct ctl_progress){.what = what,
		.unit = unit,
		.total = total,
		.next_ms = ctl_clock_ms() + EVERY_MS,
		.shown = isatty(STDERR_FILENO)};
}

void ctl_progress_add(struct ctl_progress *p, uint64_t done)
{
	atomic_fetch_add(&p->done, done);
	if (!p->shown)
		return;
	uint64_t now = ctl_clock_ms(), next = atomic_load(&p->next_ms);

	/* The thread that advances next_ms draws. */
	if (now >= next && atomic_compare_exchange_strong(&p->next_ms, &next, now + EVERY_MS))
		draw(p);
}

void ctl_progress_end(struct ctl_progress *p)
{
	if (p->shown)
		dprintf(STDERR_FILENO, "\r\033[K");
	p->shown = false;
}
