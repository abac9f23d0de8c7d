/* Messages and progress on stderr; time and memory. */
#include "client/ctl/common/ctl.h"
#include "proto/fault.h"
#include "proto/phrases.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int ctl_fail(const char *text, ...)
{
	char line[2 * PATH_MAX];
	va_list args;

	va_start(args, text);
	vsnprintf(line, sizeof(line), text, args);
	va_end(args);
	fprintf(stderr, "tokctl: %s\n", fault_line(line));
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
	double all = (double)(atomic_fetch_add(&p->done, done) + done), total = (double)p->total;
	uint64_t now = p->shown ? ctl_clock_ms() : 0, next = atomic_load(&p->next_ms);

	/* The thread that advances next_ms draws. */
	if (now < next || !atomic_compare_exchange_strong(&p->next_ms, &next, now + EVERY_MS))
		return;
	if (p->total > 0)
		dprintf(STDERR_FILENO, "\r\033[K%.120s  %s of %s, %.0f %%", p->what,
			si(all, p->unit).text, si(total, p->unit).text, 100 * all / total);
	else
		dprintf(STDERR_FILENO, "\r\033[K%.120s  %s", p->what, si(all, p->unit).text);
}

void ctl_progress_end(struct ctl_progress *p)
{
	if (p->shown)
		dprintf(STDERR_FILENO, "\r\033[K");
	p->shown = false;
}
