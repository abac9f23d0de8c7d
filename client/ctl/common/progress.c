/* The bar has no thread of its own. The thread that adds bytes when a redraw is due draws it. */
#include "client/ctl/common/progress.h"

#include "client/ctl/common/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

enum {
	EVERY_NS = 100 * 1000 * 1000,
	LONG_BYTES = 64 << 20, /* work of this size shows the bar at once */
	CELLS = 30,
};

/* Writes the bar and what is left. Returns the length, as snprintf(). */
static int write_bar(
	const struct ctl_progress *p, double seconds, double rate, char *line, size_t line_bytes)
{
	double share = (double)p->done / (double)p->total;
	char cells[CELLS + 1], speed[32];

	share = share < 1 ? share : 1;
	for (int i = 0; i < CELLS; i++)
		cells[i] = (double)i < share * CELLS ? '#' : '.';
	cells[CELLS] = 0;
	unsigned long left = rate > 0 ? (unsigned long)(seconds * (1 - share) / share) : 0;

	if (p->unit)
		snprintf(speed, sizeof(speed), "%.0f %s/s", rate, p->unit);
	else
		snprintf(speed, sizeof(speed), "%.0f MB/s", rate / 1e6);
	return snprintf(line, line_bytes, "\r\033[K%s [%s] %3.0f %%  %s  %lu:%02lu left", p->what,
		cells, 100 * share, speed, left / 60, left % 60);
}

static void draw(const struct ctl_progress *p, uint64_t now)
{
	double seconds = (double)(now - p->began_ns + 1) / 1e9, rate = (double)p->done / seconds;
	char line[256];
	int n = p->total ? write_bar(p, seconds, rate, line, sizeof(line))
			 : snprintf(line, sizeof(line), "\r\033[K%s  %" PRIu64 " %s  %.0f %s/s",
				   p->what, p->done, p->unit, rate, p->unit);

	(void)!write(STDERR_FILENO, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

static void begin(struct ctl_progress *p, const char *what, const char *unit, uint64_t total)
{
	*p = (struct ctl_progress){
		.what = what, .unit = unit, .total = total, .began_ns = ctl_clock_ns()};
	p->shown = isatty(STDERR_FILENO);
	p->next_ns = p->began_ns + EVERY_NS;
}

void ctl_progress_begin(struct ctl_progress *p, const char *what, uint64_t total)
{
	begin(p, what, NULL, total > 0 ? total : 1);
	if (p->shown && total >= LONG_BYTES)
		draw(p, p->began_ns);
}

void ctl_progress_count(struct ctl_progress *p, const char *what, const char *unit, uint64_t total)
{
	begin(p, what, unit, total);
}

void ctl_progress_add(struct ctl_progress *p, uint64_t done)
{
	atomic_fetch_add(&p->done, done);
	if (!p->shown)
		return;
	uint64_t now = ctl_clock_ns(), next = atomic_load(&p->next_ns);

	/* The thread that advances next_ns draws. */
	if (now >= next && atomic_compare_exchange_strong(&p->next_ns, &next, now + EVERY_NS))
		draw(p, now);
}

void ctl_progress_end(struct ctl_progress *p)
{
	if (p->shown)
		(void)!write(STDERR_FILENO, "\r\033[K", 4);
	p->shown = false;
}
