/*
 * A month: 64 ranks on two nodes take 2·10¹² tokens, with a fault each virtual hour. Windows have
 * 65,536 tokens. All positions are accounted for, and each row's place is checked. Of a window's
 * tokens the first eight are made and checked; the others are not. --days N: the first N days.
 */
#include "tests/sim/job.h"
#include "tests/sim/sim.h"

#include "proto/order.h"

enum { WINDOW = 65536, DAYS = 30 };

static uint64_t goal; /* position */
static int64_t days;

static bool reached(void)
{
	return world_job[0].next >= goal && fiber_now >= days * 86400 * SECOND;
}

static void make_stream(struct stream_plan *s)
{
	s->seq_len = s->stride = WINDOW;
	s->extra = 1;
	s->token_bytes = 2;
	s->epochs = s->samples = 0;
	s->datasets = s->first_datasets = DATASETS;
	for (unsigned d = 0; d < DATASETS; d++) {
		snprintf(s->source[d].name, sizeof(s->source[d].name), "d%u", d);
		s->source[d].key = rng_next(&world_rng);
		s->source[d].weight = 1 + (double)draw(20);
		s->source[d].lo = 0;
		s->source[d].hi = ORDER_UNITS;
		s->source[d].shards = SHARDS;
		s->source[d].block = s->source[d].group = 64;
		for (unsigned i = 0; i < SHARDS; i++)
			s->source[d].tokens[i] = (UINT64_C(1) << 35) + draw(UINT64_C(1) << 35);
	}
}

static void save_now(void *none)
{
	(void)none;
	world_job[0].action = chance(10) ? SNAPSHOT : SAVE;
	timer_at(fiber_now + 1200 * SECOND, save_now, NULL);
}

static bool stopped(void)
{
	return !world_job[0].running;
}

void month(const struct options *o)
{
	struct job *job = &world_job[0];

	world_seed = o->seed;
	world_rng.state = order_mix64(o->seed) | 1;
	world_stamps = true;
	days = o->days ? (int64_t)o->days : DAYS;
	goal = UINT64_C(2000000000000) / WINDOW * (uint64_t)days / DAYS + 1;
	streams_make();
	make_stream(&world_stream[0]);
	world_nodes = 2;
	world_jobs = 1;
	for (unsigned i = 0; i < world_nodes; i++) {
		node_make(&world_node[i], i);
		world_node[i].memory_bytes = UINT64_C(1) << 30;
		node_start(&world_node[i]);
	}
	job_make(job, 0);
	job->stream = &world_stream[0];
	job->nodes = 2;
	job->every = 1;
	job->ahead = 0;
	job->begin_at = 0;
	job->large = true;
	job->compute = 33 * SECOND;
	director_hourly();
	save_now(NULL);
	fiber_run(2 * days * 86400 * SECOND, reached);
	CHECK(reached());
	CHECK(world_counts.faults >= 24 * (uint64_t)days);
	while (job->running || job->saves == 0 || job->save[job->saves - 1].next < goal) {
		job->action = STOP;
		job->stopped = job->running;
		fiber_run(fiber_now + 600 * SECOND, stopped);
		job->stopped = job->saves > 0 && job->save[job->saves - 1].next >= goal;
	}
	history_check(&job->history, goal);
}
