/* The line has no thread of its own. The thread that adds work when a redraw is due draws it. */
#include "client/ctl/common/progress.h"

#include "client/ctl/common/emit.h"
#include "client/ctl/common/error.h"
#include "proto/fault.h"

#include <unistd.h>

enum { EVERY_NS = 100 * 1000 * 1000 };

static void draw(const struct ctl_progress *p, uint64_t now)
{
	double seconds = (double)(now - p->began_ns + 1) / 1e9, done = (double)p->done;
	double rate = done / seconds, left = (double)p->total - done;
	char line[256];
	int n = snprintf(line, sizeof(line), "%.120s  %s  %s/s", p->what, si(done, p->unit).text,
		si(rate, p->unit).text);

	if (p->total > 0 && left >= 0 && rate > 0)
		snprintf(line + n, sizeof(line) - (size_t)n, "  %.0f %%  %.0f:%02.0f left",
			100 * done / (double)p->total, (double)((uint64_t)(left / rate) / 60),
			(double)((uint64_t)(left / rate) % 60));
	dprintf(STDERR_FILENO, "\r\033[K%s", fault_line(line));
}

void ctl_progress_begin(struct ctl_progress *p, const char *what, const char *unit, uint64_t total)
{
	*p = (struct ctl_progress){
		.what = what, .unit = unit, .total = total, .began_ns = ctl_clock_ns()};
	p->shown = isatty(STDERR_FILENO);
	p->next_ns = p->began_ns + EVERY_NS;
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
		dprintf(STDERR_FILENO, "\r\033[K");
	p->shown = false;
}
