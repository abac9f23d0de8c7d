#include "daemon/control/runs.h"

#include "daemon/control/log.h"
#include "proto/order.h"
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BUCKETS = 4096,
	SCAN_MS = 2000,		     /* how long a start waits for the owners */
	NOTES_MOST = 1024,	     /* mix log entries that may wait to be written */
	NOTES_EACH = NOTES_MOST / 4, /* of one user, who may flood them while state_dir hangs */
	/* How long an attach waits for its entry, so that several daemons write theirs in order. */
	NOTE_MS = 250,
};

#define UNNAMED "default"

struct run {
	struct run *next;
	uid_t owner;
	bool clean; /* its directory contains no left-over files */
	char stream[LIMIT_NAME_BYTES + 1], name[LIMIT_NAME_BYTES + 1];
};

struct runs {
	struct runs_options options;
	struct run_locks *locks; /* used by the keeper's thread */
	struct mix_logs *logs;	 /* likewise */
	bool known;		 /* the owners have been read */
	bool stopping;
	_Atomic unsigned notes; /* mix log entries that wait to be written */
	struct run *bucket[BUCKETS];
};

/* ---- the copy in memory ---- */

static struct run **bucket(struct runs *runs, const char *stream, const char *name)
{
	uint64_t a = order_checksum(stream, strlen(stream)), b = order_checksum(name, strlen(name));

	return &runs->bucket[order_mix64(a ^ order_mix64(b)) % BUCKETS];
}

static struct run *find(struct runs *runs, const char *stream, const char *name)
{
	struct run *run = *bucket(runs, stream, name);

	while (run && (strcmp(run->stream, stream) != 0 || strcmp(run->name, name) != 0))
		run = run->next;
	return run;
}

/* Finds the run, or adds it. NULL: out of memory. */
static struct run *get(struct runs *runs, const char *stream, const char *name)
{
	struct run *run = find(runs, stream, name), **at = bucket(runs, stream, name);

	if (run)
		return run;
	run = calloc(1, sizeof(*run));
	if (!run)
		return NULL;
	run->owner = RUN_NOBODY;
	snprintf(run->stream, sizeof(run->stream), "%s", stream);
	snprintf(run->name, sizeof(run->name), "%s", name);
	run->next = *at;
	*at = run;
	return run;
}

static uid_t owner_of(struct runs *runs, const char *stream, const char *name)
{
	const struct run *run = find(runs, stream, name);

	return run ? run->owner : RUN_NOBODY;
}

bool runs_known(const struct runs *runs)
{
	return runs->known;
}

/* ---- permissions ---- */

void runs_config(struct runs *runs, const struct config *config)
{
	runs->options.config = config;
}

bool runs_privileged(const struct config *config, uid_t uid)
{
	for (uint32_t i = 0; i < config->admin_uids; i++)
		if (config->admin_uid[i] == uid)
			return true;
	return uid == 0;
}

bool runs_may(struct runs *runs, uid_t uid, const char *stream, const char *name)
{
	uid_t owner = owner_of(runs, stream, name);

	return owner == RUN_NOBODY || owner == uid || runs_privileged(runs->options.config, uid);
}

bool runs_owns(struct runs *runs, uid_t uid, const char *stream, const char *name)
{
	return owner_of(runs, stream, name) == uid;
}

/* The user whose unnamed run has this name, or RUN_NOBODY. */
static uid_t unnamed_of(const char *name)
{
	size_t n = strlen(UNNAMED "@");
	uint64_t uid;

	if (strncmp(name, UNNAMED "@", n) != 0 || !wire_digits(name + n, &uid) || uid >= UINT32_MAX)
		return RUN_NOBODY;
	return (uid_t)uid;
}

void runs_rename(struct runs *runs, uid_t uid, const char *stream, char *run)
{
	if (strcmp(run, UNNAMED) == 0 && !runs_may(runs, uid, stream, run))
		snprintf(run, LIMIT_NAME_BYTES + 1, UNNAMED "@%u", (unsigned)uid);
}

bool runs_enter(struct runs *runs, uid_t uid, const char *stream, char *run, struct fault *fault)
{
	uid_t kept = unnamed_of(run);

	if (kept != RUN_NOBODY && kept != uid && !runs_privileged(runs->options.config, uid))
		return fault_set(fault, FAULT_ATTACH, "run",
			"%s is the name of uid %u's unnamed run; use another one", run,
			(unsigned)kept);
	/* Until the owners are known anybody may attach; runs_found() then ends wrong sessions. */
	if (!runs->known)
		return true;
	runs_rename(runs, uid, stream, run);
	if (runs_may(runs, uid, stream, run))
		return true;
	return fault_set(fault, FAULT_ATTACH, "run",
		"run %s belongs to uid %u, and uid %u is not in admin_uids; use another name for "
		"the run",
		run, (unsigned)owner_of(runs, stream, run), (unsigned)uid);
}

bool runs_begin(struct runs *runs, struct user *user, const char *stream, const char *run,
	uint64_t now_ms, struct fault *fault)
{
	if (!user_may_write(user, now_ms, FAULT_ATTACH, fault))
		return false;
	if (find(runs, stream, run))
		return true;
	return get(runs, stream, run) ||
	       fault_set_passing(fault, FAULT_MEMORY, "run", "out of memory");
}

bool runs_claim(struct runs *runs, uid_t uid, const char *stream, const char *name,
	const struct mix_noted *noted, struct fault *fault)
{
	struct run *run = get(runs, stream, name);

	if (!run)
		return fault_set_passing(fault, FAULT_MEMORY, "run", "out of memory");
	if (noted->owner != RUN_NOBODY)
		runs_found(runs, run->stream, run->name, noted->owner);
	if (run->owner == RUN_NOBODY && !runs_privileged(runs->options.config, uid))
		run->owner = uid;
	if (!runs->known || runs_may(runs, uid, run->stream, run->name))
		return true;
	return fault_set_passing(fault, FAULT_ATTACH, "run",
		"uid %u has just become the owner of run %s; attach again", (unsigned)run->owner,
		run->name);
}

void runs_found(struct runs *runs, const char *stream, const char *name, uid_t owner)
{
	struct run *run = owner != RUN_NOBODY ? get(runs, stream, name) : NULL;

	if (!run || run->owner == owner)
		return;
	run->owner = owner;
	runs->options.on_owner(runs->options.context, stream, name, owner);
}

/* ---- places ---- */

void runs_place(
	struct runs *runs, uid_t uid, const char *stream, const char *name, struct run_place *place)
{
	const struct config *config = runs->options.config;
	struct run *run = find(runs, stream, name);

	place->locks = runs->locks;

	snprintf(place->state_dir, sizeof(place->state_dir), "%s", config->state_dir);
	snprintf(place->stream, sizeof(place->stream), "%s", stream);
	snprintf(place->run, sizeof(place->run), "%s", name);
	place->uid = uid;
	place->privileged = runs_privileged(config, uid);
	place->clean = !run || !run->clean;
}

void runs_cleaned(struct runs *runs, const struct run_place *place)
{
	struct run *run = find(runs, place->stream, place->run);

	if (run)
		run->clean = true;
}

/* ---- the mix log ---- */

struct note {
	struct keeper_job job;
	struct runs *runs;
	struct mix_logs *logs; /* of @runs, which may be gone */
	struct run_place place;
	uint64_t checksum;
	struct mix_noted noted;
	size_t n;
	char bytes[];
};

static void note_work(struct keeper_job *job)
{
	struct note *note = (struct note *)job;

	mix_log_note(note->logs, &note->place, note->checksum, note->bytes, note->n, &note->noted);
}

static void note_done(struct keeper_job *job)
{
	struct note *note = (struct note *)job;
	struct runs *runs = note->runs;
	struct user *user = user_of(runs->options.users, note->place.uid);

	runs->notes--;
	if (note->noted.added && user)
		user_charge(user, USER_FILE, 1);
	if (note->noted.opened)
		runs_cleaned(runs, &note->place);
	runs_found(runs, note->place.stream, note->place.run, note->noted.owner);
	free(note);
}

/* Is there room for one more entry? Counts it in any case. */
static bool note_room(struct runs *runs, const struct run_place *place)
{
	if (runs->notes++ >= NOTES_MOST)
		return false;
	return place->privileged || place->uid == geteuid() ||
	       keeper_jobs_of(runs->options.keeper, place->uid) < NOTES_EACH;
}

/* NULL: too many wait, or out of memory, which is logged. Any thread. */
static struct note *note_new(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n)
{
	struct note *note = note_room(runs, place) ? calloc(1, sizeof(*note) + n) : NULL;

	if (!note) {
		runs->notes--;
		log_client(place->uid, LOG_WARNING,
			"stream %s, run %s: cannot write the mix log: %u entries wait for "
			"state_dir, and %u calls of uid %u; tokctl --run will not know this mix "
			"before the next attach",
			place->stream, place->run, runs->notes,
			keeper_jobs_of(runs->options.keeper, place->uid), (unsigned)place->uid);
		return NULL;
	}
	note->job = (struct keeper_job){.uid = place->uid, .work = note_work, .done = note_done};
	note->runs = runs;
	note->logs = runs->logs;
	note->place = *place;
	note->checksum = checksum;
	note->noted = (struct mix_noted){.owner = RUN_NOBODY};
	note->n = n;
	memcpy(note->bytes, bytes, n);
	return note;
}

struct mix_noted runs_note(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n)
{
	struct mix_noted noted = {.owner = RUN_NOBODY};
	struct note *note = note_new(runs, place, checksum, bytes, n);

	if (note && keeper_await(runs->options.keeper, &note->job, NOTE_MS)) {
		noted = note->noted;
		keeper_finish(runs->options.keeper, &note->job);
	}
	return noted;
}

void runs_note_later(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n)
{
	struct note *note = note_new(runs, place, checksum, bytes, n);

	if (note)
		keeper_give(runs->options.keeper, &note->job);
}

/* ---- reading state_dir when the daemon starts ---- */

struct found {
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	uid_t owner;
};

/* One job reads the owners. Then the directories are cleaned, one per job, so that other jobs do
 * not wait for all of them. */
struct scan {
	struct keeper_job job;
	struct runs *runs;
	struct run_place place;
	struct found *found;
	size_t n, room;
	size_t at; /* index of the next directory to be cleaned */
	unsigned streams;
	char stream[][LIMIT_NAME_BYTES + 1];
};

static bool add_found(struct scan *scan, const char *stream, const char *run, uid_t owner)
{
	if (scan->n == scan->room) {
		size_t room = scan->room ? 2 * scan->room : 64;
		struct found *found = realloc(scan->found, room * sizeof(*found));

		if (!found)
			return false;
		scan->found = found;
		scan->room = room;
	}
	struct found *f = &scan->found[scan->n++];

	snprintf(f->stream, sizeof(f->stream), "%s", stream);
	snprintf(f->run, sizeof(f->run), "%s", run);
	f->owner = owner;
	return true;
}

static void scan_stream(struct scan *scan, const char *stream)
{
	char path[PATH_MAX + 2 * LIMIT_NAME_BYTES + 3], run[LIMIT_NAME_BYTES + 1];
	struct fault fault;
	struct dirent *e;
	uid_t owner;

	snprintf(path, sizeof(path), "%s/%s", scan->place.state_dir, stream);

	DIR *dir = opendir(path);

	while (dir && (e = readdir(dir))) {
		if (!wire_name_ok(e->d_name) || (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN))
			continue;
		memcpy(run, e->d_name, strlen(e->d_name) + 1);
		snprintf(path, sizeof(path), "%s/%s/%s", scan->place.state_dir, stream, run);

		if (!run_dir_owner(path, &owner, &fault) && fault.error != ENOTDIR)
			log_line(LOG_WARNING,
				"state_dir: %s/.owner: %s: the owner of the run is unknown; mend "
				"or remove the file",
				path,
				fault.code == FAULT_DATA ? "not a uid" : strerror(fault.error));
		if (!add_found(scan, stream, run, owner))
			break;
	}
	if (dir)
		closedir(dir);
}

static void scan_work(struct keeper_job *job)
{
	struct scan *scan = (struct scan *)job;

	if (!config_may_write(scan->place.state_dir))
		log_line(LOG_WARNING,
			"state_dir: uid %u may not write to %s: checkpoints will fail; chown it, "
			"or name another state_dir",
			(unsigned)geteuid(), scan->place.state_dir);
	run_dir_greet(&scan->place);
	for (unsigned i = 0; i < scan->streams; i++)
		scan_stream(scan, scan->stream[i]);
}

static void sweep_work(struct keeper_job *job)
{
	run_dir_sweep(&((struct scan *)job)->place);
}

static void scan_free(struct scan *scan)
{
	free(scan->found);
	free(scan);
}

/* Cleans the next directory that no other job has cleaned meanwhile. */
static void sweep_done(struct keeper_job *job)
{
	struct scan *scan = (struct scan *)job;
	struct run *run = NULL;

	while (scan->at < scan->n && !scan->runs->stopping) {
		const struct found *f = &scan->found[scan->at++];

		run = get(scan->runs, f->stream, f->run);
		if (run && !run->clean)
			break;
		run = NULL;
	}
	if (!run) {
		scan_free(scan);
		return;
	}
	runs_place(scan->runs, 0, run->stream, run->name, &scan->place);
	scan->job.work = sweep_work;
	scan->job.done = sweep_done;
	keeper_give(scan->runs->options.keeper, &scan->job);
}

static void scan_done(struct keeper_job *job)
{
	struct scan *scan = (struct scan *)job;
	struct runs *runs = scan->runs;

	runs->known = true;
	for (size_t i = 0; i < scan->n; i++)
		runs_found(runs, scan->found[i].stream, scan->found[i].run, scan->found[i].owner);
	sweep_done(job);
}

static struct scan *scan_new(struct runs *runs)
{
	const struct config *config = runs->options.config;
	struct scan *scan = calloc(1, sizeof(*scan) + config->streams * sizeof(scan->stream[0]));

	if (!scan)
		return NULL;
	scan->job = (struct keeper_job){
		.uid = (uid_t)KEEPER_NOBODY, .work = scan_work, .done = scan_done};
	scan->runs = runs;
	scan->place.locks = runs->locks;
	scan->streams = config->streams;
	snprintf(scan->place.state_dir, sizeof(scan->place.state_dir), "%s", config->state_dir);
	for (uint32_t i = 0; i < config->streams; i++)
		memcpy(scan->stream[i], config->stream[i].name, sizeof(scan->stream[i]));
	return scan;
}

static void free_runs(struct runs *runs)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct run *run = runs->bucket[i], *next; run; run = next) {
			next = run->next;
			free(run);
		}
	free(runs);
}

void runs_free(struct runs *runs)
{
	if (!runs)
		return;
	run_locks_free(runs->locks);
	mix_logs_free(runs->logs);
	free_runs(runs);
}

void runs_stop(struct runs *runs)
{
	runs->stopping = true;
}

struct runs *runs_start(const struct runs_options *options)
{
	struct runs *runs = calloc(1, sizeof(*runs));
	struct scan *scan;

	if (!runs)
		return NULL;
	runs->options = *options;
	runs->locks = run_locks_new();
	runs->logs = mix_logs_new();
	scan = runs->locks && runs->logs ? scan_new(runs) : NULL;
	if (!scan) {
		runs_free(runs);
		return NULL;
	}
	keeper_give(options->keeper, &scan->job);
	if (!keeper_wait(options->keeper, SCAN_MS))
		log_line(LOG_WARNING,
			"state_dir %s has not answered for %d s: starting without the owners of "
			"its runs; check its file system",
			options->config->state_dir, SCAN_MS / 1000);
	return runs;
}
