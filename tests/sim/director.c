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

static void power_cut(struct node *node)
{
	for (unsigned j = 0; j < world_jobs; j++)
		for (unsigned i = 0; i < WORLD_MOST; i++) {
			struct trainer *r = world_job[j].trainer[i];

			if (r && r->node == node)
				proc_kill(r->proc, 137);
		}
	node_kill(node);
	disk_power_cut(node->disk);
	world_counts.power_cuts++;
	snapshots_check(node);
}

static void sever(void)
{
	struct node *node = a_node();

	if (node->daemon)
		world_counts.severed += socket_sever(node->daemon);
}

static void kill_trainer(void)
{
	struct job *job = a_job();
	struct trainer *r = job->trainer[pick(job->world ? job->world : 1)];

	if (!r)
		return;
	proc_kill(r->proc, 137);
	world_counts.trainer_kills++;
}

static void trouble_disk(struct node *node)
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
		break;
	}
}

static void one(enum class class)
{
	struct node *node = a_node();
	struct job *job = a_job();
	uint64_t a = pick(UINT64_MAX), b = pick(UINT64_MAX);

	if (off >> class & 1)
		return;
	world_say("event: %s", director_classes[class]);
	switch (class) {
	case TRAINER_KILL:
		kill_trainer();
		break;
	case JOB_KILL:
		if (job->running) {
			job_kill(job);
			world_counts.job_kills++;
		}
		break;
	case DAEMON_KILL:
		world_counts.daemon_kills += node->daemon != NULL;
		node_kill(node);
		break;
	case DAEMON_STOP:
		world_counts.daemon_stops += node->daemon != NULL;
		node_stop(node);
		break;
	case POWER_CUT:
		power_cut(node);
		break;
	case SEVER:
		sever();
		break;
	case EIO_BURST:
		node->storage.eio = a % 2 ? 0 : 1 + (unsigned)(b % 300);
		break;
	case STALL:
		node->storage.slow = (unsigned)(a % 50);
		node->storage.stalled_until = fiber_now + (int64_t)(b % (uint64_t)(5 * SECOND));
		world_counts.stalls++;
		break;
	case STATE_DIR:
		trouble_disk(node);
		break;
	case CLOCK:
		world_clock_offset += (int64_t)(a % (uint64_t)(2000 * SECOND)) - 1000 * SECOND;
		world_counts.clock_jumps++;
		break;
	case CONFIG:
		world_version = 1;
		break;
	case REQUEST:
		for (unsigned i = 0; i < world_jobs && !job->running; i++)
			job = &world_job[i];
		operator_start(job);
		break;
	case OPERATOR_KILL:
		operator_kill();
		break;
	case ACTION:
		job->action = (enum action)(1 + a % STOP);
		break;
	case DELAY:
		socket_delay_most = a % 4 ? 20 * MICRO : (int64_t)(b % (uint64_t)(5 * MILLI));
		break;
	case STRANGER:
		stranger_start(job);
		break;
	case CLASSES:
		break;
	}
}

/* Daemons and jobs that are down start again after a while. */
static void restart(void)
{
	for (unsigned i = 0; i < world_nodes; i++) {
		struct node *node = &world_node[i];

		/* memory: counts the two rings of a seek as one. */
		CHECK(!node->daemon || node->daemon->ring_bytes <= 2 * node->memory_bytes);
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
	static const uint8_t often[CLASSES] = {6, 3, 8, 4, 3, 6, 4, 3, 4, 2, 1, 20, 3, 30, 2, 3};
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
		one(faults[pick(sizeof(faults) / sizeof(faults[0]))]);
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
		/* Its memory limit is in its config. */
		if (node->daemon)
			node_stop(node);
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
