/* One history of the world: it begins, things happen, faults end, all make progress, all stop. */
#include "tests/sim/job.h"
#include "tests/sim/sim.h"

#include "proto/order.h"

#include <inttypes.h>
#include <stdarg.h>

struct rng world_rng;
uint64_t world_seed;
bool world_verbose;

__attribute__((noreturn)) void world_broken(const char *what, const char *file, int line)
{
	fflush(stdout);
	fprintf(stderr, "sim: seed %" PRIu64 ", at %" PRId64 " us, in %s: %s:%d: false: %s\n",
		world_seed, fiber_now / MICRO, fiber_proc() ? fiber_proc()->name : "the world",
		file, line, what);
	abort();
}

void world_say(const char *format, ...)
{
	va_list args;

	if (!world_verbose)
		return;
	printf("%10" PRId64 ".%03" PRId64 " %s: ", fiber_now / MILLI, fiber_now / MICRO % 1000,
		fiber_proc() ? fiber_proc()->name : "world");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static bool all_configured(void)
{
	for (unsigned i = 0; i < world_nodes; i++)
		if (!world_node[i].daemon || node_old_config(&world_node[i]))
			return false;
	return true;
}

static bool all_went_on(void)
{
	for (unsigned i = 0; i < world_jobs; i++)
		if (world_job[i].progress < 20 && !world_job[i].over)
			return false;
	return true;
}

static bool jobs_stopped(void)
{
	for (unsigned i = 0; i < world_jobs; i++)
		if (world_job[i].running || world_job[i].alive > 0)
			return false;
	return true;
}

static bool no_operators(void)
{
	return operators_alive() == 0;
}

static bool no_daemons(void)
{
	for (unsigned i = 0; i < world_nodes; i++)
		if (world_node[i].daemon || world_node[i].old)
			return false;
	return true;
}

static bool never(void)
{
	return false;
}

static void make(void)
{
	streams_make();
	world_nodes = 1 + (unsigned)draw(3);
	world_jobs = 1 + (unsigned)draw(4);
	world_ranks = 1 + (unsigned)draw(6);
	for (unsigned i = 0; i < world_nodes; i++) {
		node_make(&world_node[i], i);
		node_start(&world_node[i]);
	}
	for (unsigned i = 0; i < world_jobs; i++)
		job_make(&world_job[i], i);
}

static void finish(void)
{
	director_heal();
	fiber_run(fiber_now + 20 * SECOND, all_configured);
	CHECK(all_configured());
	for (unsigned i = 0; i < world_jobs; i++)
		world_job[i].progress = 0;
	fiber_run(fiber_now + 20 * SECOND, all_went_on);
	CHECK(all_went_on());
	director_end();
	for (unsigned i = 0; i < world_jobs; i++) {
		world_job[i].stopped = true;
		world_job[i].action = world_job[i].running ? STOP : NOTHING;
	}
	fiber_run(fiber_now + 20 * SECOND, jobs_stopped);
	CHECK(jobs_stopped());
	fiber_run(fiber_now + 70 * SECOND, no_operators); /* they wait for a minute at most */
	CHECK(no_operators());
	/* Those that had just started are ready to be stopped now. */
	fiber_run(fiber_now + SECOND, no_daemons);
	for (unsigned second = 0; !no_daemons(); second++) {
		CHECK(second < 32); /* some were stopping already, so their successors are, too */
		for (unsigned i = 0; i < world_nodes; i++)
			node_stop(&world_node[i]);
		fiber_run(fiber_now + SECOND, no_daemons);
	}
	for (unsigned i = 0; i < world_nodes; i++)
		snapshots_check(&world_node[i]);
	fiber_run(fiber_now + SECOND, never);
}

void history(const struct options *o)
{
	world_seed = o->seed;
	world_rng.state = order_mix64(o->seed) | 1;
	make();
	director_begin(o->events, o->without);
	fiber_run(3600 * SECOND, director_done);
	CHECK(director_done());
	finish();
	world_counts.disk_errors = disk_injected();
	for (unsigned i = 0; i < world_jobs; i++)
		job_free(&world_job[i]);
	for (unsigned i = 0; i < world_nodes; i++)
		node_free(&world_node[i]);
}
