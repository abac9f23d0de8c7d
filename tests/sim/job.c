#include "tests/sim/job.h"

#include "tests/unit/injected.h"

struct job world_job[JOBS_MOST];
unsigned world_jobs, world_ranks = 4;

void job_make(struct job *job, unsigned number)
{
	*job = (struct job){.number = number,
		.stream = &world_stream[draw(STREAMS)],
		.uid = 1000 + (uid_t)draw(USERS),
		.first_node = (unsigned)draw(world_nodes),
		.nodes = 1 + (unsigned)draw(world_nodes),
		.every = 1 + (unsigned)draw(6),
		.ahead = chance(2) ? 0 : 1 + (unsigned)draw(AHEAD),
		.polls = chance(3),
		.strict = chance(2),
		.nervous = chance(3),
		.compute = (int64_t)(1 + draw(20)) * 100 * MICRO,
		.from = -1};
	snprintf(job->run, sizeof(job->run), "run%u", number);
	if (!job->stream->epochs && !job->stream->samples && chance(3))
		job->begin_at = draw(UINT64_C(1) << (10 + draw(45))) / 1024 * 1024;
}

void job_free(struct job *job)
{
	history_clear(&job->history, 0);
}

uint64_t job_reduce(struct job *job, uint64_t value)
{
	uint64_t round = job->round;

	if (value > job->value)
		job->value = value;
	if (++job->arrived < job->world) {
		while (job->round == round)
			fiber_block(job, NEVER);
		return job->result;
	}
	job->result = job->value;
	job->value = 0;
	job->arrived = 0;
	job->round++;
	if (job->next_world) {
		job->world = job->next_world;
		job->micro = job->next_micro;
		job->next_world = 0;
	}
	fiber_wake(job);
	if (chance(4))
		fiber_yield();
	return job->result;
}

static void trainer_ended(struct proc *p)
{
	struct trainer *r = p->owner;
	struct job *job = r->job;

	if (job->trainer[r->rank] == r) {
		job->trainer[r->rank] = NULL;
		job->alive--;
		if (!job->stopping)
			job_abort(job, "a rank has died");
	}
	if (job->alive == 0)
		job->running = false;
	__real_free(r);
}

void job_new_trainer(struct job *job, uint64_t rank)
{
	struct trainer *r = __real_calloc(1, sizeof(*r));
	char name[32];

	CHECK(r);
	r->job = job;
	r->rank = rank;
	r->node = &world_node[(job->first_node + rank * job->nodes / job->world) % world_nodes];
	snprintf(name, sizeof(name), "job%u.%u", job->number, (unsigned)rank);
	r->proc = proc_new(name, job->uid, r->node);
	r->proc->owner = r;
	r->proc->ended = trainer_ended;
	r->proc->starves = trainer_starves;
	job->trainer[rank] = r;
	job->alive++;
	fiber_new(r->proc, trainer_main, r);
}

/* Is a snapshot of the job on the node of all its ranks, and of a checkpoint that is kept? */
static bool choose_tag(struct job *job)
{
	for (unsigned i = 0; i < TAGS; i++) {
		const struct snapshot *s = &job->snapshot[i];

		if (!s->acknowledged || s->attempts > 0 || s->node != &world_node[job->first_node])
			continue;
		for (unsigned k = 0; k < job->saves; k++)
			if (job->save[k].n == s->n &&
				memcmp(job->save[k].bytes, s->bytes, s->n) == 0) {
				snprintf(job->tag, sizeof(job->tag), "t%u", i);
				job->from = (int)k;
				return true;
			}
	}
	return false;
}

/* The run is at save number @from again: checkpoints of a future that did not happen go. */
void saves_prune(struct job *job)
{
	uint64_t next = job->save[job->from].next;

	history_back(&job->history, next);
	for (unsigned k = 0; k < job->saves;)
		if (job->save[k].next > next) {
			memmove(&job->save[k], &job->save[k + 1],
				(job->saves - k - 1) * sizeof(job->save[0]));
			job->saves--;
			job->from -= job->from > (int)k;
		} else {
			k++;
		}
}

void job_start(struct job *job)
{
	job->world = 1 + draw(world_ranks);
	job->micro = 1 + (uint32_t)draw(4);
	job->slots = 1 + (uint32_t)draw(8);
	if (job->large) {
		job->world = WORLD_MOST;
		job->micro = 8;
		job->slots = 4;
	}
	job->hold = (unsigned)draw(job->slots < HOLD ? job->slots : HOLD);
	job->arrived = 0;
	job->value = job->next_world = 0;
	job->running = true;
	job->aborting = job->stopping = false;
	job->action = NOTHING;
	job->tag[0] = 0;
	job->from = -1;
	if (job->saves > 0) {
		/* Usually the newest. */
		job->from = (int)(chance(job->large ? 8 : 2) ? draw(job->saves) : job->saves - 1);
		if (chance(3) && job->nodes == 1)
			choose_tag(job);
		job->plan = job->save[job->from].plan;
		saves_prune(job);
	}
	world_counts.restarts++;
	world_say("job %u starts: %s world %u micro %u slots %u from %d %s", job->number,
		job->stream->name, (unsigned)job->world, job->micro, job->slots, job->from,
		job->tag);
	for (uint64_t rank = 0; rank < job->world; rank++)
		job_new_trainer(job, rank);
}

void job_kill(struct job *job)
{
	job->stopping = true; /* nobody reports that the others have died */
	for (unsigned i = 0; i < WORLD_MOST; i++)
		if (job->trainer[i])
			proc_kill(job->trainer[i]->proc);
	CHECK(job->alive == 0);
	job->running = job->stopping = job->aborting = false;
}

static void abort_now(void *argument)
{
	struct job *job = argument;

	if (job->running && job->aborting)
		job_kill(job);
	job->aborting = false;
}

void job_abort(struct job *job, const char *why)
{
	if (job->aborting || job->stopping)
		return;
	world_say("job %u aborts: %s", job->number, why);
	job->aborting = true;
	timer_at(fiber_now + (int64_t)draw(20 * MILLI), abort_now, job);
}

/* ---- snapshots ---- */

static bool is_one_of(const struct snapshot *s, const uint8_t *bytes, size_t n)
{
	if (s->acknowledged && s->n == n && memcmp(s->bytes, bytes, n) == 0)
		return true;
	for (unsigned i = 0; i < s->attempts; i++)
		if (s->attempt[i].n == n && memcmp(s->attempt[i].bytes, bytes, n) == 0)
			return true;
	return false;
}

void snapshots_check(const struct node *node)
{
	uint8_t bytes[LIMIT_CURSOR_BYTES];
	char path[200];

	for (unsigned j = 0; j < world_jobs; j++)
		for (unsigned i = 0; i < TAGS; i++) {
			const struct job *job = &world_job[j];
			const struct snapshot *s = &job->snapshot[i];

			if (s->node != node || s->vague)
				continue;
			snprintf(path, sizeof(path), "/state/%s/%s@%u/t%u.cursor",
				job->stream->name, job->run, (unsigned)job->uid, i);

			ssize_t n = disk_peek(node->disk, path, bytes, sizeof(bytes));

			CHECK(n > 0 || !s->acknowledged);
			CHECK(n < 0 || is_one_of(s, bytes, (size_t)n));
		}
}
