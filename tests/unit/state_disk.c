#include "tests/unit/state_disk.h"

#include "tests/disk/calls.h"

#include <assert.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <time.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

enum {
	FIRST_FD = 1000,
	FDS = 64,
	WRITE_MOST = 700, /* no write() takes more: some are short */
};

struct disk_machine disk_machine;
__thread int disk_process = 1;
static struct disk_file files[FDS];

int __real_close(int fd);
int __real_fstat(int fd, struct stat *st);
ssize_t __real_getrandom(void *to, size_t n, unsigned flags);

/* ---- what the disk's calls need ---- */

void *disk_memory(size_t n)
{
	void *at = calloc(1, n);

	assert(at);
	return at;
}

void disk_memory_free(void *at)
{
	free(at);
}

struct disk *disk_here(void)
{
	assert(disk_machine.disk);
	return disk_machine.disk;
}

bool call_begins(const char *call, const char *path, bool writes)
{
	struct disk_fault *fault = &disk_machine.fault;
	int error = errno;

	(void)path, (void)writes;
	disk_machine.call = call;
	if (disk_machine.before)
		disk_machine.before(disk_machine.context);
	errno = error;
	disk_machine.calls++;
	if (disk_machine.calls != fault->call)
		return false;
	fault->met = true;
	fault->name = call;
	errno = fault->error;
	return !fault->late;
}

int call_ends(int result)
{
	const struct disk_fault *fault = &disk_machine.fault;

	if (disk_machine.calls != fault->call || !fault->late || !fault->met || result < 0)
		return result;
	errno = fault->error;
	return -1;
}

size_t call_takes(size_t n, bool writes)
{
	return writes && n > WRITE_MOST ? WRITE_MOST : n;
}

struct disk_file *disk_file_of(int fd)
{
	if (fd < FIRST_FD || fd >= FIRST_FD + FDS || !files[fd - FIRST_FD].inode) {
		errno = EBADF;
		return NULL;
	}
	return &files[fd - FIRST_FD];
}

int disk_file_add(struct disk_inode *inode)
{
	int i = 0;

	while (i < FDS && files[i].inode)
		i++;
	assert(i < FDS);
	disk_file_begin(&files[i], inode);
	disk_machine.open_files++;
	return FIRST_FD + i;
}

/* ---- other calls ---- */

int __wrap_close(int fd)
{
	struct disk_file *file;

	if (fd < FIRST_FD)
		return __real_close(fd);
	file = disk_file_of(fd);
	if (!file)
		return -1;

	bool fails = call_begins("close", NULL, false);

	disk_file_end(file);
	disk_machine.open_files--;
	return fails ? -1 : call_ends(0);
}

int __wrap_fstat(int fd, struct stat *st)
{
	return fd < FIRST_FD ? __real_fstat(fd, st) : disk_file_stat(fd, st);
}

/* Counts, so that every test can be repeated. */
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	if (!disk_machine.disk)
		return __real_getrandom(to, n, flags);
	if (call_begins("getrandom", NULL, false))
		return -1;
	assert(n == sizeof(uint64_t));
	memcpy(to, &(uint64_t){(uint64_t)disk_process << 32 | ++disk_machine.random}, n);
	return (ssize_t)n;
}

void __wrap_log_write(bool client, uid_t uid, int level, const char *format, ...)
{
	(void)client, (void)uid, (void)level, (void)format;
}

/* ---- where a test is ---- */

static struct encoded *value[VALUES];

struct scene scene;

void broken(const char *format, ...)
{
	const struct disk_machine *m = &scene.machine;
	const struct disk_fault *fault = &m->fault;
	char text[256];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	fail_msg("%s, step %u, cut at call %u (after %s), failed call %u (%s%s): %s",
		scene.scenario, scene.step, m->calls, m->call ? m->call : "none",
		fault->met ? fault->call : 0, fault->met ? fault->name : "none",
		fault->late ? ", late" : "", text);
}

struct daemon daemon_start(const struct world *w, int process)
{
	disk_process = process;
	return (struct daemon){{.dir = w->state_dir}};
}

struct state_run run_of(struct daemon *d, const char *name)
{
	struct state_run run = {.state = &d->state, .stream = "train"};

	snprintf(run.name, sizeof(run.name), "%s", name);
	return run;
}

static int value_of(const void *bytes, size_t n)
{
	for (int v = 0; v < VALUES; v++)
		if (value[v]->n == n && memcmp(value[v]->at, bytes, n) == 0)
			return v;
	return -1;
}

/* ---- what is there ---- */

static const char *const tags[TAGS] = {"a", "b", ".run"};

int load(const struct world *w, const char *name, unsigned t, struct fault *fault)
{
	struct daemon d = {{.dir = w->state_dir}};
	struct state_run run = run_of(&d, name);
	char bytes[LIMIT_CURSOR_BYTES];
	size_t n = state_load(&run, tags[t], bytes, fault);
	int v = value_of(bytes, n);

	if (n == 0)
		return -1;
	if (v < 0)
		broken("%s is a mixture", tags[t]);
	return v;
}

/* Everything that was promised is on the mounted disk. */
static void check(const struct world *w)
{
	for (unsigned t = 0; t < TAGS; t++) {
		const struct promise *p = &w->tag[t];
		struct fault fault = {0};
		int v = load(w, "job", t, &fault);

		if (v < 0 && p->must)
			broken("%s is lost: %s", tags[t], fault.text);
		if (v < 0 && fault.error != ENOENT)
			broken("%s: %s", tags[t], fault.text);
		if (v >= 0 && !(p->may >> v & 1))
			broken("%s has value %d, but may have %x", tags[t], v, p->may);
	}
}

/* ---- steps ---- */

bool take_step(struct world *w, struct daemon *d, const struct step *step, struct fault *fault)
{
	const bool saves = step->kind == 's';
	const struct encoded *b = value[step->value];
	const unsigned bit = 1U << step->value;
	struct promise *p = &w->tag[saves ? (unsigned)(step->tag - 'a') : TAGS - 1];
	struct state_run run = run_of(d, "job");
	bool written;

	*fault = (struct fault){0};
	p->may |= bit;
	if (saves ? !state_save(&run, tags[p - w->tag], b->at, b->n, fault)
		  : !state_note(&run, b->at, b->n, &written, fault))
		return false;
	p->must |= saves; /* the next attach notes it again */
	if (saves && !w->shared)
		p->may = bit;
	return true;
}

/* ---- scene.cuts ---- */

struct disk_machine mount_disk(struct disk *disk)
{
	struct disk_machine old = disk_machine;

	disk_machine = (struct disk_machine){.disk = disk, .call = old.call};
	return old;
}

void unmount_disk(struct disk_machine old)
{
	if (disk_machine.open_files > 0)
		broken("%u files are left open", disk_machine.open_files);
	disk_free(disk_machine.disk);
	disk_machine = old;
}

bool has_temporaries(const struct world *w)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/train/job", w->state_dir);

	const struct disk_inode *d = disk_find(disk_machine.disk, path);

	for (const struct disk_entry *e = d ? d->entries : NULL; e; e = e->next)
		if (e->now && strstr(e->name, ".new"))
			return true;
	return false;
}

/* The next daemon saves and notes on the mounted disk. */
static void recover(const struct world *world)
{
	const struct step steps[] = {{'s', 'a', 5}, {'n', 0, 5}};
	struct world w = *world;
	struct fault fault;
	struct daemon d = daemon_start(world, 9);

	for (unsigned i = 0; i < COUNT(steps); i++)
		if (!take_step(&w, &d, &steps[i], &fault))
			broken("the next daemon fails: %s", fault.text);
	check(&w);
}

struct outcome {
	bool all; /* that is not synced is kept */
	uint64_t rest;
};

/* The next choice. */
static unsigned choose(void *context, unsigned n)
{
	struct outcome *o = context;
	unsigned chosen = (unsigned)(o->rest % n);

	o->rest /= n;
	return o->all && n > 1 ? 1 : chosen;
}

/* Outcome 0: nothing unsynced is kept; 1: everything is. */
static void cut(const struct disk *disk, const struct world *w, uint64_t outcome)
{
	struct disk_machine old = mount_disk(disk_copy(disk));
	struct outcome o = {outcome == 1, outcome - (outcome > 0)};
	int process = disk_process;

	disk_cut(disk_machine.disk, choose, &o);
	check(w);
	if (scene.cuts++ % RECOVER_EACH == 0)
		recover(w);
	disk_process = process;
	unmount_disk(old);
}

void cut_now(const struct disk *disk, const struct world *w, uint64_t most)
{
	uint64_t n = disk_outcomes(disk);

	for (uint64_t i = 0; i < (n <= most ? n : most); i++)
		cut(disk, w, n <= most || i < 2 ? i : rng_below(&scene.rng, n));
}

/* ---- values ---- */

const struct encoded *state_value(unsigned v)
{
	return value[v];
}

int state_set_up(void **state)
{
	struct cursor_source source[SOURCES];
	char names[SOURCES][24];

	(void)state;
	for (unsigned i = 0; i < SOURCES; i++) {
		source[i] = web;
		snprintf(names[i], sizeof(names[i]), "dataset-number-%u", i);
		source[i].name = names[i];
	}
	for (unsigned v = 0; v < VALUES; v++) {
		struct cursor id = identity(), c;
		struct fault fault;

		id.seed += v;
		assert_true(cursor_begin(&c, &id, source, SOURCES, NULL, 0, &fault));
		value[v] = encode(&c);
		cursor_free(&c);
		assert_true(cursor_decode(&c, value[v]->at, value[v]->n, &fault));
		cursor_free(&c);
		assert_true(value[v]->n > 2 * DISK_SECTOR && value[v]->n <= 4 * DISK_SECTOR);
	}
	scene.rng.state = 1;
	return 0;
}

int state_tear_down(void **state)
{
	(void)state;
	for (unsigned v = 0; v < VALUES; v++)
		free(value[v]);
	return 0;
}
