/*
 * The power fails at every call on state_dir, the daemon is killed there, or the call fails. Then
 * an acknowledged snapshot is there, a tag is the old snapshot or a new one and never a mixture,
 * and the next daemon saves as before. The real code runs on a disk in memory that forgets
 * (tests/disk/model.h).
 */
#include "tests/unit/injected.h"
#include "tests/unit/state_disk.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

enum {
	ALL = 4096,  /* so many outcomes of a cut are all tried */
	SAMPLE = 12, /* otherwise, and in long explorations, so many */
	MOST_STEPS = 8,
};

static uint64_t kills, faults;

/* ---- one life of a disk ---- */

struct life {
	struct world w;
	const struct step *step;
	unsigned steps;
	uint64_t most; /* outcomes a cut */
	unsigned version;
	bool killing;
};

static void run_after_kill(const struct life *life);

static void before_call(void *context)
{
	struct life *life = context;
	struct disk *disk = disk_machine.disk;

	if (life->version == disk->version || (disk_machine.fault.call && !disk_machine.fault.met))
		return;
	life->version = disk->version;
	scene.machine = disk_machine;
	if (life->most)
		cut_now(disk, &life->w, life->most);
	if (life->killing)
		run_after_kill(life);
}

/* Takes the steps with @d. Returns how many failed. */
static unsigned live(struct life *life, struct daemon *d)
{
	unsigned failed = 0;
	struct fault fault;

	disk_machine.before = before_call;
	disk_machine.context = life;
	for (unsigned i = 0; i < life->steps; i++) {
		scene.step = i;
		if (!take_step(&life->w, d, &life->step[i], &fault)) {
			failed++;
			if (!disk_machine.fault.met)
				broken("%s", fault.text);
			if (life->step[i].kind == 's' &&
				!strstr(fault.text, strerror(disk_machine.fault.error)))
				broken("'%s' does not name the error", fault.text);
		}
		life->version = disk_machine.disk->version;
		scene.machine = disk_machine;
		if (life->most && (disk_machine.fault.met || !disk_machine.fault.call))
			cut_now(disk_machine.disk, &life->w, life->most);
	}
	disk_machine.before = NULL;
	if (disk_machine.disk->retried > 0)
		broken("a file is used after its fsync() failed");
	return failed;
}

/* The daemon is killed before its next call. Another one takes the same steps. */
static void run_after_kill(const struct life *before)
{
	struct life life = *before;
	struct disk_machine old = mount_disk(disk_copy(disk_machine.disk));
	int process = disk_process;

	kills++;
	life.killing = false;
	life.most = SAMPLE;

	struct daemon d = daemon_start(&life.w, process + 1);

	live(&life, &d);
	disk_process = process;
	unmount_disk(old);
}

struct scenario {
	const char *name, *state_dir;
	struct step step[MOST_STEPS];
};

static const struct scenario scenarios[] = {
	{"a save", "/var/lib/state", {{'s', 'a', 0}}},
	{"a save below the root directory", "/state", {{'s', 'a', 0}}},
	{"a tag saved again", "/state",
		{{'s', 'a', 0}, {'s', 'a', 1}, {'s', 'a', 1}, {'s', 'a', 2}, {'s', 'a', 0}}},
	{"two tags", "/state", {{'s', 'a', 0}, {'s', 'b', 1}, {'s', 'a', 2}, {'s', 'b', 2}}},
	{"mixes", "/state", {{'n', 0, 0}, {'n', 0, 1}, {'n', 0, 1}, {'n', 0, 0}}},
	{"mixes and saves", "/state",
		{{'n', 0, 0}, {'s', 'a', 0}, {'n', 0, 1}, {'s', 'a', 1}, {'s', 'b', 1}}},
};

static struct life life_of(const struct scenario *s, uint64_t most)
{
	struct life life = {.w = {.state_dir = s->state_dir}, .step = s->step, .most = most};

	while (life.steps < MOST_STEPS && s->step[life.steps].kind)
		life.steps++;
	return life;
}

/* Runs the scenario on a new disk, with @fault. Returns the number of failed steps. */
static unsigned run_scenario(const struct scenario *s, uint64_t most, bool killing,
	const struct disk_fault *fault, struct disk_fault *met)
{
	struct life life = life_of(s, most);
	unsigned failed;

	scene.scenario = s->name;

	struct disk_machine old = mount_disk(disk_new());
	struct daemon d = daemon_start(&life.w, 1);

	life.killing = killing;
	disk_machine.fault = *fault;
	failed = live(&life, &d);
	*met = disk_machine.fault;
	if (met->met) { /* the fault has gone: the same again */
		disk_machine.fault = (struct disk_fault){0};
		life.most = most / 4;
		assert_int_equal(live(&life, &d), 0);
		d = daemon_start(&life.w, 2);
	}
	assert_false(has_temporaries(&life.w));
	unmount_disk(old);
	return failed;
}

/* ---- tests ---- */

static const struct disk_fault none = {0};

static void the_power_fails_at_every_call(void **state)
{
	struct disk_fault met;
	uint64_t before = scene.cuts;

	(void)state;
	for (unsigned i = 0; i < COUNT(scenarios); i++) {
		run_scenario(&scenarios[i], ALL, false, &none, &met);
		print_message("%s: %llu cuts\n", scenarios[i].name, (unsigned long long)scene.cuts);
	}
	assert_true(scene.cuts - before > 1000);
	injected(16, scene.cuts - before);
}

static void a_daemon_is_killed_at_every_call(void **state)
{
	struct disk_fault met;

	(void)state;
	for (unsigned i = 0; i < COUNT(scenarios); i++)
		run_scenario(&scenarios[i], 0, true, &none, &met);
	print_message("%llu kills\n", (unsigned long long)kills);
	assert_true(kills > 100);
}

/* Each call fails in turn, before or after its effect. Then the power fails, or the same is done
 * again. */
static void every_call_fails(void **state)
{
	static const struct {
		int error;
		bool late;
		unsigned most; /* outcomes a cut */
	} errors[] = {{EIO, false, 6}, {EIO, true, 4}, {ENOSPC, false, 1}};

	(void)state;
	for (unsigned i = 0; i < COUNT(scenarios); i++)
		for (unsigned e = 0; e < COUNT(errors); e++)
			for (unsigned call = 1;; call++) {
				const struct disk_fault fault = {.call = call,
					.error = errors[e].error,
					.late = errors[e].late};
				struct disk_fault met;

				run_scenario(&scenarios[i], errors[e].most, false, &fault, &met);
				if (!met.met)
					break;
				faults++;
			}
	print_message("%llu faults\n", (unsigned long long)faults);
	assert_true(faults > 1000);
	injected(14, faults);
}

/* ---- two daemons ---- */

/*
 * Two threads, of which one runs: each call is a point where the other may go on. The first one
 * runs @first calls, then the other one @second calls, then the first one to its end.
 */
struct pair {
	pthread_mutex_t mutex;
	pthread_cond_t turned;
	struct world w;
	unsigned turn, left; /* whose turn it is, for so many calls more */
	unsigned second;
	bool over[2];
};

struct half {
	struct pair *pair;
	unsigned number;
	struct step step[3];
};

static void pass_turn(struct pair *p, unsigned self)
{
	if (p->over[!self])
		return;
	p->turn = !self;
	p->left = self == 0 && p->second ? p->second : UINT_MAX;
	p->second = 0;
	pthread_cond_broadcast(&p->turned);
	while (p->turn != self)
		pthread_cond_wait(&p->turned, &p->mutex);
}

static void before_call_of_two(void *context)
{
	struct pair *p = context;
	unsigned self = (unsigned)disk_process - 1;

	if (p->left-- == 0)
		pass_turn(p, self);
}

static void *run_half(void *context)
{
	struct half *half = context;
	struct pair *p = half->pair;
	struct fault fault;

	pthread_mutex_lock(&p->mutex);
	while (p->turn != half->number)
		pthread_cond_wait(&p->turned, &p->mutex);

	struct daemon d = daemon_start(&p->w, (int)half->number + 1);

	for (unsigned i = 0; i < COUNT(half->step); i++) {
		scene.machine = disk_machine;
		if (!take_step(&p->w, &d, &half->step[i], &fault))
			broken("%s", fault.text);
		disk_machine.before = NULL;
		cut_now(disk_machine.disk, &p->w, 4);
		disk_machine.before = before_call_of_two;
	}
	p->over[half->number] = true;
	p->turn = !half->number;
	p->left = UINT_MAX;
	pthread_cond_broadcast(&p->turned);
	pthread_mutex_unlock(&p->mutex);
	return NULL;
}

/* Returns how many calls the first daemon made before its turn ended. */
static unsigned run_two(unsigned first, unsigned second)
{
	struct pair p = {.w = {.state_dir = "/state", .shared = true},
		.left = first,
		.second = second,
		.mutex = PTHREAD_MUTEX_INITIALIZER,
		.turned = PTHREAD_COND_INITIALIZER};
	struct half half[] = {{&p, 0, {{'n', 0, 0}, {'s', 'a', 0}, {'s', 'a', 1}}},
		{&p, 1, {{'s', 'a', 2}, {'n', 0, 1}, {'s', 'b', 3}}}};
	pthread_t thread[2];

	scene.scenario = "two daemons";

	struct disk_machine old = mount_disk(disk_new());

	disk_machine.before = before_call_of_two;
	disk_machine.context = &p;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, run_half, &half[i]), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	disk_machine.before = NULL;
	cut_now(disk_machine.disk, &p.w, SAMPLE);
	assert_false(has_temporaries(&p.w));

	unsigned calls = disk_machine.calls;

	unmount_disk(old);
	return calls;
}

static void two_daemons_take_turns(void **state)
{
	unsigned calls = run_two(UINT_MAX, 0), n = 0;

	(void)state;
	for (unsigned first = 0; first < calls; first++)
		for (unsigned second = 1 + first % 17; second < calls; second += 17, n++)
			run_two(first, second);
	print_message("%u orders of the calls of two daemons\n", n);
	injected(50, n);
}

/* ---- reading ---- */

/* Each call of a load fails. It returns the snapshot, or an error, but never the snapshot that
 * another run has under this tag. */
static void a_failed_read_is_no_other_snapshot(void **state)
{
	static const char *const runs[] = {"job", "other"};
	struct world w = {.state_dir = "/state"};
	unsigned call = 0, failed = 0;
	struct fault fault;

	(void)state;

	struct disk_machine old = mount_disk(disk_new());
	struct daemon d = daemon_start(&w, 1);

	for (unsigned i = 0; i < COUNT(runs); i++) {
		struct state_run run = run_of(&d, runs[i]);

		assert_true(state_save(&run, "a", state_value(i)->at, state_value(i)->n, &fault));
	}
	do {
		disk_machine.calls = 0;
		disk_machine.fault = (struct disk_fault){.call = ++call, .error = EIO};

		int v = load(&w, "job", 0, &fault);

		if (v > 0)
			fail_msg("%s fails: the snapshot of another run", disk_machine.fault.name);
		if (v < 0)
			assert_non_null(strstr(fault.text, strerror(EIO)));
		failed += v < 0;
	} while (disk_machine.fault.met);
	assert_true(call > 4 && failed > 1);
	injected(14, call - 1);
	unmount_disk(old);
}

/* The argument, if any, is a pattern of names: only these tests are run. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_power_fails_at_every_call),
		cmocka_unit_test(a_daemon_is_killed_at_every_call),
		cmocka_unit_test(every_call_fails),
		cmocka_unit_test(two_daemons_take_turns),
		cmocka_unit_test(a_failed_read_is_no_other_snapshot),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, state_set_up, state_tear_down);
}
