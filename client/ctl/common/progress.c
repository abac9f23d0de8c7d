/* The bar has no thread of its own. The thread that adds bytes when a redraw is due draws it. */
#include "client/ctl/common/progress.h"

#include "client/ctl/common/clock.h"

#include <stdio.h>
#include <unistd.h>

enum {
	EVERY_NS = 100 * 1000 * 1000,
	LONG_BYTES = 64 << 20, /* work of this size shows the bar at once */
	CELLS = 30,
};

static void draw(const struct ctl_progress *p, uint64_t now)
{
	double share = p->total ? (double)p->done / (double)p->total : 1;
	double seconds = (double)(now - p->began_ns + 1) / 1e9, rate = (double)p->done / seconds;
	char line[160], cells[CELLS + 1];

	share = share < 1 ? share : 1;
	for (int i = 0; i < CELLS; i++)
		cells[i] = (double)i < share * CELLS ? '#' : '.';
	cells[CELLS] = 0;
	unsigned long left = rate > 0 ? (unsigned long)((double)p->total * (1 - share) / rate) : 0;
	int n = snprintf(line, sizeof(line), "\r\033[K%s [%s] %3.0f %%  %.0f MB/s  %lu:%02lu left",
		p->what, cells, 100 * share, rate / 1e6, left / 60, left % 60);

	(void)!write(STDERR_FILENO, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

void ctl_progress_begin(struct ctl_progress *p, const char *what, uint64_t total)
{
	*p = (struct ctl_progress){.what = what, .total = total, .began_ns = ctl_clock_ns()};
	p->shown = isatty(STDERR_FILENO);
	p->next_ns = p->began_ns + EVERY_NS;
	if (p->shown && total >= LONG_BYTES)
		draw(p, p->began_ns);
}

void ctl_progress_add(struct ctl_progress *p, uint64_t bytes)
{
	atomic_fetch_add(&p->done, bytes);
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
