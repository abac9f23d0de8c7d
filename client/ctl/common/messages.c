/* Messages and progress on stderr; time and memory. */
#include "client/ctl/common/ctl.h"
#include "proto/phrases.h"

#include <stdarg.h>
#include <stdatomic.h>
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

static struct {
	const char *what, *unit;
	uint64_t total;
	_Atomic uint64_t done, next_ms; /* next_ms: of the next redraw */
} progress;

void ctl_progress_begin(const char *what, const char *unit, uint64_t total)
{
	progress.what = what;
	progress.unit = unit;
	progress.total = total;
	progress.done = 0;
	progress.next_ms = isatty(STDERR_FILENO) ? ctl_clock_ms() + EVERY_MS : UINT64_MAX;
}

void ctl_progress_add(uint64_t n)
{
	double done = (double)(atomic_fetch_add(&progress.done, n) + n);
	uint64_t now = ctl_clock_ms(), next = progress.next_ms;

	/* The thread that advances next_ms draws. */
	if (now < next || !atomic_compare_exchange_strong(&progress.next_ms, &next, now + EVERY_MS))
		return;
	dprintf(STDERR_FILENO, "\r\033[K%.120s  %s", progress.what, si(done, progress.unit).text);
	if (progress.total > 0)
		dprintf(STDERR_FILENO, " of %s, %.0f %%",
			si((double)progress.total, progress.unit).text,
			100 * done / (double)progress.total);
}

void ctl_progress_end(void)
{
	if (progress.next_ms < UINT64_MAX)
		dprintf(STDERR_FILENO, "\r\033[K");
}
