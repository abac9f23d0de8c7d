/*
 * The simulator runs tokend's own code in a world where everything happens at the wrong moment.
 *
 *   sim [--seconds N]        seed after seed, from $TOKEND_SEED or a new one; ends with totals
 *   sim --seed S [OPTION…]   one history again
 *   sim --month              two trillion tokens; --days N: the first days of it
 *
 * A seed is a history. It runs the daemon's server_run(), with its control room, data thread,
 * and engine, and libtokend in each trainer and operator. Threads are fibers of this
 * process, in virtual time. These are simulated:
 *
 *   - the kernel: sockets with delay and loss, poll, memfds, clocks, and files on a disk that
 *     forgets what was not synced
 *   - libuv
 *   - the reader: a token is a function of dataset, shard and offset
 *   - the trainers' collective
 *
 * See world.h for the files, and director.c for the faults and actions. Tested elsewhere: the
 * reader with its short reads and the CUDA driver (tests/unit, tests/gpu), weak memory
 * (tests/memory), permissions, peers of a rank (tests/system/test_peers.py), and a whole daemon's
 * fairness (tests/system/test_neighbours.py).
 *
 * Always checked:
 *   - every row of every batch is what the order of the noted mixes says, bytes included, and a
 * held batch does not change
 *   - a job's model is trained on each position exactly once, over all restarts and worlds
 *   - at one step all ranks have the same cursor bytes
 *   - an acknowledged snapshot is there after every crash and power cut
 *   - no side sleeps while a slot is ready: no wake-up is lost
 *   - rings fit into `memory:`
 *   - an operator gets the answers that the trainers gave
 *   - within 20 s after the faults end all jobs make progress; SIGTERM ends a daemon within 15 s,
 * and then it has freed all memory and descriptors, and so has a trainer that detached
 *   - all assertions of the daemon and the library
 * Every fourth seed also drives an engine alone, with checks of turns and shares (engine.c).
 */
#include "tests/sim/sim.h"

#include "tests/sim/engine_alone.h"
#include "tests/sim/job.h"
#include "tests/unit/injected.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Of a run without limits: how long it is, or longer, until all was seen. */
enum { SECONDS = 12, HISTORIES = 500 };

void *world_main_stack;
size_t world_main_bytes;
static struct result *shared;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
pid_t __real_getpid(void);
void __real__exit(int status);

static double seconds(void)
{
	struct timespec t;

	__real_clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- a child ---- */

static void child(const struct options *o)
{
	const struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	alarm(o->month ? 0 : 300);
	world_verbose = o->verbose;
	if (o->month)
		month(o);
	else
		history(o);
	*shared = (struct result){
		world_counts, fiber_switches, fiber_interrupts, fiber_trace, (uint64_t)fiber_now};
	if (o->engine)
		engine_history(o->seed, o->engine);
}

static bool fails(const struct options *o)
{
	int status;

	memset(shared, 0, sizeof(*shared));
	fflush(stdout);

	pid_t pid = fork();

	if (pid == 0) {
		child(o);
		fflush(stdout);
		__real__exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return true;
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT) /* whose message was printed */
		fprintf(stderr, "sim: seed %" PRIu64 ": %s\n", o->seed,
			strsignal(WTERMSIG(status)));
	return status != 0;
}

/* ---- totals ---- */

/* CPU time of the children. */
static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_CHILDREN, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6 +
	       (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec / 1e6;
}

static uint64_t histories, switches, interrupts;
static struct world_counts sum;

static void add_up(void)
{
	const uint64_t *from = (const uint64_t *)&shared->counts;
	uint64_t *to = (uint64_t *)&sum;

	histories++;
	switches += shared->switches;
	interrupts += shared->interrupts;
	for (size_t i = 0; i < sizeof(sum) / sizeof(*to); i++)
		to[i] += from[i];
}

#define COUNT(name)                                                                                \
	{                                                                                          \
#name, offsetof(struct world_counts, name)                                         \
	}
/* A run without limits has seen all of these. */
static const struct {
	const char *name;
	size_t at;
} counted[] = {COUNT(batches), COUNT(rows), COUNT(padding), COUNT(reads), COUNT(attaches),
	COUNT(reattached), COUNT(refused), COUNT(no_room), COUNT(checkpoints), COUNT(snapshots),
	COUNT(restored), COUNT(restarts), COUNT(rescales), COUNT(finished), COUNT(passes),
	COUNT(committed), COUNT(requests), COUNT(answered), COUNT(failed), COUNT(undone),
	COUNT(cancelled), COUNT(mixes), COUNT(additions), COUNT(skips), COUNT(drains),
	COUNT(strangers), COUNT(foreigners), COUNT(trainer_kills), COUNT(job_kills),
	COUNT(daemon_kills), COUNT(daemon_stops), COUNT(operator_kills), COUNT(power_cuts),
	COUNT(severed), COUNT(eio), COUNT(disk_errors), COUNT(stalls), COUNT(clock_jumps),
	COUNT(interrupts)};

enum { COUNTED = sizeof(counted) / sizeof(*counted) };

static uint64_t count_of(size_t i)
{
	return *(const uint64_t *)((const char *)&sum + counted[i].at);
}

static void print_totals(void)
{
	printf("histories %" PRIu64 "  events %" PRIu64 "  interruptions %" PRIu64
	       "  events a CPU second %.0f\n",
		histories, switches, interrupts, (double)switches / (cpu_seconds() + 1e-9));
	for (size_t i = 0; i < COUNTED; i++)
		printf("%s %" PRIu64 "%s", counted[i].name, count_of(i),
			i % 10 == 9 || i + 1 == COUNTED ? "\n" : "  ");
}

static const char *missing(void)
{
	for (size_t i = 0; i < COUNTED; i++)
		if (count_of(i) == 0)
			return counted[i].name;
	return NULL;
}

static void count_faults(void)
{
	injected(1, sum.trainer_kills);
	injected(5, sum.daemon_kills);
	injected(9, sum.eio);
	injected(14, sum.disk_errors);
	injected(16, sum.power_cuts);
	injected(17, sum.strangers);
	injected(20, sum.clock_jumps);
	injected(33, sum.rescales + sum.drains);
	injected(35, sum.operator_kills + sum.undone);
}

/* ---- the program ---- */

static bool read_number(const char *text, uint64_t *to)
{
	char *end;

	*to = strtoull(text, &end, 10);
	return *text && !*end;
}

static bool read_classes(const char *text, uint32_t *to)
{
	while (*text) {
		size_t n = strcspn(text, ","), i = 0;

		while (director_classes[i] && (strlen(director_classes[i]) != n ||
						      memcmp(director_classes[i], text, n) != 0))
			i++;
		if (!director_classes[i])
			return false;
		*to |= UINT32_C(1) << i;
		text += n + (text[n] == ',');
	}
	return true;
}

struct run {
	struct options o;
	bool one;		     /* no further seed */
	bool checked;		     /* has no limits */
	uint64_t seconds, histories; /* limits; 0: none */
};

static bool read_option(struct run *run, const char *name, const char *value, bool *seed)
{
	struct options *o = &run->o;
	struct {
		const char *name;
		uint64_t *to;
	} numbers[] = {{"--seed", &o->seed}, {"--events", &o->events}, {"--engine", &o->engine},
		{"--days", &o->days}, {"--seconds", &run->seconds},
		{"--histories", &run->histories}};
	size_t k = 0;

	if (strcmp(name, "--without") == 0)
		return read_classes(value, &o->without);
	while (k < sizeof(numbers) / sizeof(*numbers) && strcmp(name, numbers[k].name) != 0)
		k++;
	if (k == sizeof(numbers) / sizeof(*numbers) || !read_number(value, numbers[k].to))
		return false;
	*seed |= k == 0;
	return true;
}

static bool read_arguments(int argc, char **argv, struct run *run)
{
	struct options *o = &run->o;
	bool seed = false;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--month") == 0)
			o->month = true;
		else if (strcmp(argv[i], "--no-shrink") == 0)
			o->no_shrink = true;
		else if (strcmp(argv[i], "--verbose") == 0)
			o->verbose = true;
		else if (read_option(run, argv[i], i + 1 < argc ? argv[i + 1] : "", &seed))
			i++;
		else
			return false;
	}
	o->month |= o->days > 0;
	run->one = o->month || run->histories == 1 ||
		   (seed && run->seconds == 0 && run->histories == 0);
	run->checked = !run->one && run->seconds == 0 && run->histories == 0;
	if (run->checked)
		run->seconds = SECONDS;
	return true;
}

static void find_stack(void)
{
	pthread_attr_t attr;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstack(&attr, &world_main_stack, &world_main_bytes);
	pthread_attr_destroy(&attr);
}

static int report_failure(struct options *o)
{
	printf("failed: ");
	print_command(o);
	if (!o->verbose && !o->month && !o->no_shrink) {
		shrink(o, fails);
		printf("smallest: ");
		print_command(o);
	}
	return 1;
}

int main(int argc, char **argv)
{
	struct timespec now;
	struct run run = {.o = {.events = 60}};
	double begin = seconds();

	__real_clock_gettime(CLOCK_REALTIME, &now);
	run.o.seed = (uint64_t)now.tv_sec * 1000 + (uint64_t)__real_getpid() % 1000;
	if (getenv("TOKEND_SEED") && !read_number(getenv("TOKEND_SEED"), &run.o.seed))
		return 2;
	if (!read_arguments(argc, argv, &run)) {
		fprintf(stderr,
			"usage: sim [--seconds N] [--seed S] [--events N] [--without CLASS,…] "
			"[--engine N] "
			"[--histories N] [--no-shrink] [--month | --days N] [--verbose]\n");
		return 2;
	}
	find_stack();
	shared = __real_mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	printf("seed %" PRIu64 "\n", run.o.seed);
	for (uint64_t i = 0;; i++) {
		struct options o = run.o;

		o.seed += i;
		if (!run.one)
			o.engine = i % 4 == 0 ? 100000 : 0;
		if (fails(&o))
			return report_failure(&o);
		add_up();
		if (run.one || i + 1 == run.histories ||
			(run.seconds && seconds() - begin >= (double)run.seconds &&
				(!run.checked || !missing() || i + 1 >= HISTORIES)))
			break;
	}
	print_totals();
	if (run.one)
		printf("virtual time %.3f s  trace %016" PRIx64 "\n",
			(double)shared->virtual_ns / 1e9, shared->trace);
	count_faults();
	if (!run.checked || !missing())
		return 0;
	printf("failed: %s is 0 in %" PRIu64 " histories\n", missing(), histories);
	return 1;
}
