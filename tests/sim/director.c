/* Faults and actions, at random times. Each has a class, so that a failing history can be run
 * without some of them. */
#include "tests/sim/job.h"

#include "proto/order.h"

#include <signal.h>

const char *const director_classes[] = {"trainer-kill", "job-kill", "daemon-kill", "daemon-stop",
	"power-cut", "sever", "eio", "stall", "state-dir", "clock", "config", "request",
	"operator-kill", "action", "delay", "stranger", NULL};

enum class {
	TRAINER_KILL,
	JOB_KILL,
	DAEMON_KILL,
	DAEMON_STOP,
	POWER_CUT,
	SEVER,
	EIO_BURST,
	STALL,
	STATE_DIR,
	CLOCK,
	CONFIG,
	REQUEST,
	OPERATOR_KILL,
	ACTION,
	DELAY,
	STRANGER,
	CLASSES,
};

static uint64_t left;
static uint32_t off;
static struct rng own; /* so that a class that is off does not change what the others draw */
static bool healing;

static uint64_t pick(uint64_t n)
{
	return rng_below(&own, n);
}

static struct node *a_node(void)
{
	return &world_node[pick(world_nodes)];
}

static struct job *a_job(void)
{
	return &world_job[pick(world_jobs)];
}

static bool power_cut(struct node *node)
{
	for (unsigned j = 0; j < world_jobs; j++)
		for (unsigned i = 0; i < WORLD_MOST; i++) {
			struct trainer *r = world_job[j].trainer[i];

			if (r && r->node == node)
				proc_kill(r->proc);
		}
	node_kill(node);
	disk_power_cut(node->disk);
	world_counts.power_cuts++;
	snapshots_check(node);
	return true;
}

static bool sever(const struct node *node)
{
	bool done = node->daemon && socket_sever(node->daemon);

	world_counts.severed += done;
	return done;
}

static bool kill_trainer(const struct job *job)
{
	struct trainer *r = job->trainer[pick(job->world ? job->world : 1)];

	if (!r)
		return false;
	proc_kill(r->proc);
	world_counts.trainer_kills++;
	return true;
}

static bool kill_job(struct job *job)
{
	if (!job->running)
		return false;
	job_kill(job);
	world_counts.job_kills++;
	return true;
}

static bool kill_daemon(struct node *node)
{
	bool done = node->daemon != NULL;

	world_counts.daemon_kills += done;
	node_kill(node);
	return done;
}

static bool stop_daemon(struct node *node)
{
	bool done = node_stop(node);

	world_counts.daemon_stops += done;
	return done;
}

static bool trouble_disk(struct node *node)
{
	struct disk_faults *f = &node->disk_faults;

	*f = (struct disk_faults){0};
	switch (pick(4)) {
	case 0:
		f->enospc = 1 + (unsigned)pick(10);
		break;
	case 1:
		f->eio = 1 + (unsigned)pick(10);
		break;
	case 2:
		f->slow = 1 + (unsigned)pick(10);
		break;
	default:
		return false;
	}
	return true;
}

static bool stall(struct storage *s, uint64_t a, uint64_t b)
{
	s->slow = (unsigned)(a % 50);
	s->stalled_until = fiber_now + (int64_t)(b % (uint64_t)(5 * SECOND));
	world_counts.stalls++;
	return true;
}

/* All daemons start again with all datasets. */
static bool change_config(void)
{
	if (world_version == 1)
		return false;
	world_version = 1;
	for (unsigned i = 0; i < world_nodes; i++)
		node_stop(&world_node[i]);
	return true;
}

static bool request(struct job *job)
{
	for (unsigned i = 0; i < world_jobs && !job->running; i++)
		job = &world_job[i];
	operator_start(job);
	return true;
}

/* Returns true if it changed anything. */
static bool one(enum class class)
{
	struct node *node = a_node();
	struct job *job = a_job();
	uint64_t a = pick(UINT64_MAX), b = pick(UINT64_MAX);

	if (off >> class & 1)
		return false;
	world_say("event: %s", director_classes[class]);
	switch (class) {
	case TRAINER_KILL:
		return kill_trainer(job);
	case JOB_KILL:
		return kill_job(job);
	case DAEMON_KILL:
		return kill_daemon(node);
	case DAEMON_STOP:
		return stop_daemon(node);
	case POWER_CUT:
		return power_cut(node);
	case SEVER:
		return sever(node);
	case EIO_BURST:
		node->storage.eio = a % 2 ? 0 : 1 + (unsigned)(b % 300);
		return node->storage.eio > 0;
	case STALL:
		return stall(&node->storage, a, b);
	case STATE_DIR:
		return trouble_disk(node);
	case CLOCK:
		world_clock_offset += (int64_t)(a % (uint64_t)(2000 * SECOND)) - 1000 * SECOND;
		world_counts.clock_jumps++;
		return true;
	case CONFIG:
		return change_config();
	case REQUEST:
		return request(job);
	case OPERATOR_KILL:
		return operator_kill();
	case ACTION:
		job->action = (enum action)(1 + a % STOP);
		return true;
	case DELAY:
		socket_delay_most = a % 4 ? 20 * MICRO : (int64_t)(b % (uint64_t)(5 * MILLI));
		return true;
	case STRANGER:
		(a % 2 ? stranger_start : foreigner_start)(job);
		return true;
	case CLASSES:
		break;
	}
	return false;
}

/* Daemons and jobs that are down start again after a while. */
static void restart(void)
{
	for (unsigned i = 0; i < world_nodes; i++) {
		struct node *node = &world_node[i];

		/* Memory limits change in director_heal(). */
		if (healing && node_old_config(node))
			node_stop(node);
		if (!node->daemon && (healing || pick(4) == 0))
			node_start(node);
		CHECK(!node->old || fiber_now - node->stopped_since < 15 * SECOND);
	}
	for (unsigned i = 0; i < world_jobs; i++) {
		struct job *job = &world_job[i];

		if (job->running || job->alive > 0)
			continue;
		if (job->over) {
			job->over = job->begun = false;
			job->saves = 0;
			job->begin_at = 0;
			world_counts.passes++;
		}
		if (!job->stopped)
			job_start(job);
	}
}

static void turn(void *none)
{
	static const uint8_t often[CLASSES] = {6, 3, 8, 4, 3, 6, 4, 3, 4, 2, 6, 20, 5, 30, 2, 4};
	unsigned all = 0, at;

	(void)none;
	restart();
	if (left == 0)
		return;
	left--;
	for (unsigned i = 0; i < CLASSES; i++)
		all += often[i];
	at = (unsigned)pick(all);
	for (unsigned i = 0; i < CLASSES; i++) {
		if (at < often[i]) {
			one((enum class)i);
			break;
		}
		at -= often[i];
	}
	timer_at(fiber_now + (int64_t)pick(pick(8) == 0 ? SECOND : 30 * MILLI), turn, NULL);
}

void director_begin(uint64_t events, uint32_t without)
{
	own.state = order_mix64(world_seed + 77) | 1;
	left = events;
	off = without;
	turn(NULL);
}

bool director_done(void)
{
	return left == 0;
}

/* ---- a long run: a fault each hour ---- */

static int64_t hourly;

static void each_minute(void *none)
{
	static const enum class faults[] = {TRAINER_KILL, JOB_KILL, DAEMON_KILL, DAEMON_KILL,
		DAEMON_STOP, POWER_CUT, SEVER, SEVER, EIO_BURST, STALL, CLOCK, STATE_DIR};

	(void)none;
	restart();
	if (fiber_now >= hourly) {
		hourly += 3600 * SECOND;
		for (unsigned i = 0; i < world_nodes; i++) {
			world_node[i].storage.eio = 0;
			world_node[i].disk_faults = (struct disk_faults){0};
		}
		while (!one(faults[pick(sizeof(faults) / sizeof(faults[0]))]))
			;
		for (unsigned i = 0; i < world_nodes; i++)
			world_node[i].storage.eio *= 50; /* not every few steps */
		world_counts.faults++;
	}
	timer_at(fiber_now + 30 * SECOND + (int64_t)pick(30 * SECOND), each_minute, NULL);
}

void director_hourly(void)
{
	own.state = order_mix64(world_seed + 77) | 1;
	healing = true; /* daemons start again within a minute */
	each_minute(NULL);
}

/* ---- the end ---- */

static void again(void *none)
{
	(void)none;
	if (!healing)
		return;
	restart();
	timer_at(fiber_now + 200 * MILLI, again, NULL);
}

void director_heal(void)
{
	for (unsigned i = 0; i < world_nodes; i++) {
		struct node *node = &world_node[i];

		node->storage.eio = node->storage.slow = 0;
		node->storage.stalled_until = 0;
		node->disk_faults = (struct disk_faults){0};
		node->memory_bytes = UINT64_C(1) << 30;
	}
	socket_delay_most = 20 * MICRO;
	for (unsigned i = 0; i < world_jobs; i++) {
		world_job[i].progress = 0;
		world_job[i].compute = 5 * MILLI; /* many seconds pass while others search */
	}
	healing = true;
	again(NULL);
}

void director_end(void)
{
	healing = false;
}
