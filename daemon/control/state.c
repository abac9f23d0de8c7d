#include "daemon/control/state.h"

#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "proto/cursor.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	STALE_S = 24 * 60 * 60, /* a temporary file of this age has no daemon any more */
	NAME_BYTES = LIMIT_NAME_BYTES + 16,
	NOTES_EACH = 256, /* cursors of one user's attaches that may wait for state_dir */
};

/* ---- jobs ---- */

void state_jobs_init(struct state_jobs *jobs, uv_loop_t *loop)
{
	*jobs = (struct state_jobs){.loop = loop};
	TAILQ_INIT(&jobs->waiting);
}

/* In the pool. */
static void job_work(uv_work_t *pool)
{
	struct state_job *job = pool->data;

	job->work(job);
}

static void begin_next(struct state_jobs *jobs);

static void job_done(uv_work_t *pool, int status)
{
	struct state_job *job = pool->data;
	struct state_jobs *jobs = job->jobs;

	(void)status;
	assert(jobs->running == job && jobs->n > 0);
	jobs->running = NULL;
	jobs->n--;
	job->done(job);
	begin_next(jobs);
}

static void begin_next(struct state_jobs *jobs)
{
	struct state_job *job;

	while (!jobs->running && (job = TAILQ_FIRST(&jobs->waiting))) {
		TAILQ_REMOVE(&jobs->waiting, job, others);
		if (job->dropped) {
			jobs->n--;
			job->done(job);
			continue;
		}
		jobs->running = job;
		jobs->begun_ms = uv_now(jobs->loop);
		job->pool.data = job;
		uv_queue_work(jobs->loop, &job->pool, job_work, job_done);
	}
}

void state_give(struct state_jobs *jobs, struct connection *c, struct state_job *job)
{
	assert(!c || !c->errand);
	job->jobs = jobs;
	job->connection = c;
	job->since_ms = uv_now(jobs->loop);
	if (c)
		c->errand = job;
	jobs->n++;
	TAILQ_INSERT_TAIL(&jobs->waiting, job, others);
	begin_next(jobs);
}

struct connection *state_back(struct state_job *job)
{
	struct connection *c = job->connection;

	if (c)
		c->errand = NULL;
	return c;
}

void state_forget(struct connection *c)
{
	struct state_job *job = c->errand;

	if (!job)
		return;
	job->connection = NULL;
	job->dropped = true;
	c->errand = NULL;
}

void state_clock(struct connection *c)
{
	const struct state_job *job = c->errand;

	if (!job || connection_now(c) - job->since_ms < STATE_DEADLINE_MS)
		return;
	state_forget(c);
	job->late(c, job); /* still valid: done() frees it, on this thread */
}

uint64_t state_busy_ms(const struct state_jobs *jobs)
{
	return jobs->running ? uv_now(jobs->loop) - jobs->begun_ms : 0;
}

/* ---- runs ---- */

bool runs_privileged(const struct config *config, uid_t uid)
{
	for (uint32_t i = 0; i < config->admin_uids; i++)
		if (config->admin_uid[i] == uid)
			return true;
	return uid == 0 || uid == geteuid();
}

/* The length of NAME in NAME@UID, and the uid; otherwise 0. */
static size_t name_of(const char *run, uid_t *uid)
{
	const char *at = strrchr(run, '@');
	uint64_t number;

	if (!at || !wire_digits(at + 1, &number) || number >= UINT32_MAX)
		return 0;
	*uid = (uid_t)number;
	return (size_t)(at - run);
}

bool runs_may(const struct config *config, uid_t uid, const char *run)
{
	uid_t user;

	return runs_privileged(config, uid) || (name_of(run, &user) > 0 && user == uid);
}

bool runs_name(
	const struct config *config, uid_t uid, char run[LIMIT_NAME_BYTES + 1], struct fault *fault)
{
	uid_t user = 0;
	size_t named = name_of(run, &user), n = named ? named : strlen(run);

	if (n > LIMIT_RUN_BYTES)
		return fault_set(fault, FAULT_ATTACH, "run",
			"%zu bytes; the name of a run has at most %d", n, LIMIT_RUN_BYTES);
	if (runs_may(config, uid, run))
		return true;
	if (named)
		return fault_set(fault, FAULT_ATTACH, "run",
			"%s is a run of uid %u, and uid %u is not in admin_uids; use another name",
			run, (unsigned)user, (unsigned)uid);
	snprintf(run + n, LIMIT_NAME_BYTES + 1 - n, "@%u", (unsigned)uid);
	return true;
}

/* ---- directories ---- */

/*
 * Creates directory @path, an absolute path, durably. @sync: also makes an existing one durable,
 * which a killed daemon may have created. We cannot have created it in a directory that we may not
 * read, or that cannot be synced. False with errno.
 */
static bool make_directory(char *path, bool sync)
{
	bool made = mkdir(path, 0755) == 0, synced;
	char *slash = strrchr(path, '/');
	int fd, error;

	if (!made && (errno != EEXIST || !sync))
		return errno == EEXIST;
	*slash = 0;
	fd = open(*path ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*slash = '/';
	synced = fd >= 0 && fsync(fd) == 0;
	error = errno;
	if (fd >= 0)
		close(fd);
	if (synced)
		return true;
	if (made)
		rmdir(path); /* otherwise the next save would take it for durable */
	errno = error;
	return !made && (error == EACCES || error == EINVAL || error == EROFS);
}

/* Creates state_dir durably. False with errno. */
static bool make_state_dir(struct state *state)
{
	char path[PATH_MAX];
	size_t n = strlen(state->dir);

	assert(state->dir[0] == '/' && n < sizeof(path));
	memcpy(path, state->dir, n + 1);
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (!make_directory(path, !state->durable))
			return false;
		*p = '/';
	}
	return state->durable = make_directory(path, !state->durable);
}

/* Opens directory @name of @at, never through a link, and closes @at. @make: creates it durably. -1
 * with errno. */
static int enter(int at, const char *name, bool make)
{
	bool made = make && mkdirat(at, name, 0755) == 0, good = !make || made || errno == EEXIST;
	int fd = -1, error;

	if (good && make && fsync(at) < 0) {
		good = false;
		error = errno;
		if (made)
			unlinkat(at, name, AT_REMOVEDIR);
		errno = error;
	}
	if (good)
		fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	error = errno;
	close(at);
	errno = error;
	return fd;
}

/* Opens the run's directory. @make: creates it durably. -1 with errno. */
static int open_run(const struct state_run *run, bool make)
{
	int at = !make || make_state_dir(run->state)
			 ? open(run->state->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
			 : -1;

	if (at >= 0)
		at = enter(at, run->stream, make);
	return at >= 0 ? enter(at, run->name, make) : -1;
}

/* ---- files ---- */

/* Reads a file in directory @at. Returns its length, or -1 with errno. A FIFO must not make it wait
 * for a writer. */
static ssize_t read_file(int at, const char *name, char bytes[LIMIT_CURSOR_BYTES])
{
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), error;
	size_t have = 0;
	ssize_t n = 0;
	struct stat st;
	char more;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0) {
		n = -1;
	} else if (!S_ISREG(st.st_mode)) {
		errno = EINVAL;
		n = -1;
	}
	while (n >= 0 && have < LIMIT_CURSOR_BYTES &&
		(n = read(fd, bytes + have, LIMIT_CURSOR_BYTES - have)) > 0)
		have += (size_t)n;
	if (n >= 0 && have == LIMIT_CURSOR_BYTES && read(fd, &more, 1) == 1) {
		errno = EFBIG;
		n = -1;
	}
	error = errno;
	close(fd);
	errno = error;
	return n < 0 ? -1 : (ssize_t)have;
}

/* Creates file @name in directory @at, and fsyncs it. False with errno. */
static bool write_file(int at, const char *name, const char *bytes, size_t n)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), error;
	ssize_t done;

	if (fd < 0)
		return false;
	while (n > 0 && ((done = write(fd, bytes, n)) >= 0 || errno == EINTR)) {
		bytes += done > 0 ? done : 0;
		n -= done > 0 ? (size_t)done : 0;
	}

	bool good = n == 0 && fsync(fd) == 0;

	error = errno;
	if (close(fd) < 0 && good)
		return false;
	errno = error;
	return good;
}

/* Replaces file @name in directory @at. False with errno: it is as before, or replaced, but perhaps
 * not after a power cut. */
static bool replace_file(int at, const char *name, const char *bytes, size_t n)
{
	char temporary[32];
	uint64_t random;
	int error;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return false;
	snprintf(temporary, sizeof(temporary), ".%016" PRIx64 ".new", random);
	if (write_file(at, temporary, bytes, n) && renameat(at, temporary, at, name) == 0)
		return fsync(at) == 0;
	error = errno;
	unlinkat(at, temporary, 0);
	errno = error;
	return false;
}

/* Removes temporary files of killed daemons from directory @at. */
static void remove_stale(int at)
{
	int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	time_t before = time(NULL) - STALE_S;
	const struct dirent *e;
	struct stat st;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (e = readdir(dir))) {
		size_t n = strlen(e->d_name);

		if (e->d_name[0] == '.' && n > 5 && strcmp(e->d_name + n - 4, ".new") == 0 &&
			fstatat(at, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			st.st_mtime < before)
			unlinkat(at, e->d_name, 0);
	}
	if (dir)
		closedir(dir);
}

/* ---- snapshots ---- */

static bool failed(const struct state_run *run, const char *name, struct fault *fault)
{
	int error = errno;

	return fault_errno(fault, error, "state_dir", "%s/%s/%s/%s: %s", run->state->dir,
		run->stream, run->name, name,
		error == EINVAL ? "not a regular file" : strerror(error));
}

/* Replaces file @name of the run. */
static bool save(const struct state_run *run, const char *name, const void *bytes, size_t n,
	struct fault *fault)
{
	int at = open_run(run, true);

	if (at < 0)
		return failed(run, name, fault);
	remove_stale(at);

	bool saved = replace_file(at, name, bytes, n) || failed(run, name, fault);

	close(at);
	return saved;
}

bool state_save(const struct state_run *run, const char *tag, const void *bytes, size_t n,
	struct fault *fault)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "%s.cursor", tag);
	return save(run, name, bytes, n, fault);
}

/* Reads file @name of the run. Returns its length, or -1 with errno. */
static ssize_t load(const struct state_run *run, const char *name, char bytes[LIMIT_CURSOR_BYTES])
{
	int at = open_run(run, false), error;

	if (at < 0)
		return -1;

	ssize_t n = read_file(at, name, bytes);

	error = errno;
	close(at);
	errno = error;
	return n;
}

size_t state_load(const struct state_run *run, const char *tag, void *bytes, struct fault *fault)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "%s.cursor", tag);

	ssize_t n = load(run, name, bytes);

	if (n < 0 && errno == ENOENT)
		fault_errno(fault, ENOENT, "tag",
			"run %s of stream %s has no snapshot %s (%s/%s/%s/%s); RUN/TAG names one "
			"of "
			"another run",
			run->name, run->stream, tag, run->state->dir, run->stream, run->name, name);
	else if (n < 0)
		failed(run, name, fault);
	else if (n == 0)
		fault_set(fault, FAULT_DATA, "tag", "%s/%s/%s/%s: the file is empty",
			run->state->dir, run->stream, run->name, name);
	return n > 0 ? (size_t)n : 0;
}

/* Whether the cursors in @a and @b differ in nothing but their positions. */
static bool same_mixes(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	struct cursor one = {0}, other = {0};
	char bytes[2][LIMIT_CURSOR_BYTES];
	struct fault fault;
	bool same = cursor_decode(&one, a, a_bytes, &fault) &&
		    cursor_decode(&other, b, b_bytes, &fault);

	if (same) {
		one.next = one.segment[0]->start;
		other.next = other.segment[0]->start;

		size_t n = cursor_encode(&one, bytes[0], sizeof(bytes[0]));

		same = cursor_encode(&other, bytes[1], sizeof(bytes[1])) == n &&
		       memcmp(bytes[0], bytes[1], n) == 0;
	}
	cursor_free(&one);
	cursor_free(&other);
	return same;
}

bool state_note(const struct state_run *run, const void *bytes, size_t n, bool *written,
	struct fault *fault)
{
	char now[LIMIT_CURSOR_BYTES];
	ssize_t have = load(run, PLACE_RUN_CURSOR, now);

	*written = have < 0 || !same_mixes(now, (size_t)have, bytes, n);
	return !*written || save(run, PLACE_RUN_CURSOR, bytes, n, fault);
}

/* ---- a client saves ---- */

struct checkpoint {
	struct state_job job; /* first member */
	struct control *control;
	const struct stream *stream;
	struct state_run run;
	char tag[LIMIT_NAME_BYTES + 1];
	bool ok;
	struct fault fault;
	size_t n;
	char bytes[];
};

/* In the pool. */
static void checkpoint_work(struct state_job *work)
{
	struct checkpoint *job = (struct checkpoint *)work;
	struct cursor cursor;

	job->ok = cursor_decode(&cursor, job->bytes, job->n, &job->fault);
	if (job->ok) {
		job->ok = cursor_belongs(&cursor, &job->stream->begin, &job->fault);
		cursor_free(&cursor);
	}
	job->ok = job->ok && state_save(&job->run, job->tag, job->bytes, job->n, &job->fault);
	if (!job->ok)
		job->fault.code = FAULT_CHECKPOINT;
}

static void count_failed(const struct stream *stream)
{
	stream->counts->snapshots_failed++;
	stream->counts->snapshot_failed_s = time(NULL);
}

static void count_made(const struct stream *stream)
{
	stream->counts->snapshots++;
	stream->counts->snapshot_s = time(NULL);
}

static void answer(struct connection *c, const struct checkpoint *job)
{
	struct wire w = {.op = WIRE_SAVED};
	char path[PATH_MAX];

	if (!job->ok) {
		log_client(c->uid, LOG_ERROR, "snapshot %s not saved: %s: %s", job->tag,
			job->fault.field, job->fault.text);
		connection_error(c, job->job.serial, &job->fault);
		return;
	}
	snprintf(path, sizeof(path), "%s/%s/%s/%s.cursor", job->run.state->dir, job->run.stream,
		job->run.name, job->tag);
	wire_set_text(&w, WIRE_TAG, job->tag);
	wire_set_text(&w, WIRE_PATH, path);
	wire_set(&w, WIRE_DIGEST, order_checksum(job->bytes, job->n));
	connection_send(c, job->job.serial, &w);
}

static void checkpoint_done(struct state_job *work)
{
	struct checkpoint *job = (struct checkpoint *)work;
	struct connection *c = state_back(work);
	struct user *user;

	if (job->ok)
		count_made(job->stream);
	else if (c) /* otherwise it was counted when it was late, or the client has left */
		count_failed(job->stream);
	if (c)
		answer(c, job);
	if (job->ok && (user = user_of(&job->control->users, work->uid)))
		user_charge(user, USER_FILE, 1);
	free(job);
}

static void checkpoint_late(struct connection *c, const struct state_job *work)
{
	const struct checkpoint *job = (const struct checkpoint *)work;
	struct fault fault;

	log_client(c->uid, LOG_ERROR,
		"pid %d: snapshot not saved: state_dir has not answered for %d s; check its file "
		"system",
		(int)c->pid, STATE_DEADLINE_MS / 1000);
	count_failed(job->stream);
	fault_set(&fault, FAULT_CHECKPOINT, "state_dir",
		"has not answered for %d s; the snapshot may not be saved, save it again later",
		STATE_DEADLINE_MS / 1000);
	connection_error(c, work->serial, &fault);
}

/* All checks that need no access to state_dir. */
static bool check(const struct connection *c, const struct wire *w, struct fault *fault)
{
	uint64_t busy_ms = state_busy_ms(&c->control->state.jobs);

	if (wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES)
		return fault_set(fault, FAULT_CHECKPOINT, "cursor",
			"%u bytes; a cursor has at most %d", wire_bytes(w, WIRE_CURSOR).n,
			LIMIT_CURSOR_BYTES);
	if (busy_ms >= STATE_DEADLINE_MS)
		return fault_set(fault, FAULT_CHECKPOINT, "state_dir",
			"has not answered for %" PRIu64
			" s; the snapshot is not saved, save it again later",
			busy_ms / 1000);
	return user_may_write(c->user, connection_now(c), FAULT_CHECKPOINT, fault);
}

struct state_run state_run(const struct session *s)
{
	struct state_run run = {.state = &s->control->state};

	memcpy(run.stream, s->stream->config->name, sizeof(run.stream));
	memcpy(run.name, s->run, sizeof(run.name));
	return run;
}

/* NULL with @fault: the tag is not valid, or out of memory. */
static struct checkpoint *checkpoint_new(
	const struct connection *c, const struct wire *w, struct fault *fault)
{
	struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);
	struct checkpoint *job = calloc(1, sizeof(*job) + b.n);

	if (!job) {
		fault_set_passing(fault, FAULT_MEMORY, "tag", PHRASE_MEMORY);
		return NULL;
	}
	if (!wire_text(w, WIRE_TAG, job->tag, sizeof(job->tag)) || !wire_name_ok(job->tag)) {
		free(job);
		fault_set(fault, FAULT_CHECKPOINT, "tag", "must be " PHRASE_NAME);
		return NULL;
	}
	job->job = (struct state_job){.uid = c->uid,
		.serial = wire_number(w, WIRE_SERIAL),
		.work = checkpoint_work,
		.done = checkpoint_done,
		.late = checkpoint_late};
	job->control = c->control;
	job->stream = c->session->stream;
	job->run = state_run(c->session);
	memcpy(job->bytes, b.at, b.n);
	job->n = b.n;
	return job;
}

void state_checkpoint(struct connection *c, const struct wire *w)
{
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct checkpoint *job;
	struct fault fault;

	if (c->errand) {
		fault_set(&fault, FAULT_CHECKPOINT, "connection",
			"another snapshot is being saved; wait for its reply");
		connection_refuse(c, serial, &fault);
		return;
	}
	job = check(c, w, &fault) ? checkpoint_new(c, w, &fault) : NULL;
	if (!job) {
		count_failed(c->session->stream);
		connection_error(c, serial, &fault);
		return;
	}
	state_give(&c->control->state.jobs, c, &job->job);
}

/* ---- a session attaches ---- */

struct note {
	struct state_job job; /* first member */
	struct state_run run;
	struct users *users;
	bool written;
	size_t n;
	char bytes[];
};

/* In the pool. */
static void note_work(struct state_job *job)
{
	struct note *note = (struct note *)job;
	struct fault fault;

	if (!state_note(&note->run, note->bytes, note->n, &note->written, &fault))
		log_client(job->uid, LOG_WARNING,
			"stream %s, run %s: its cursor is not saved: %s; the run continues, but "
			"tokctl --run knows no mixes that are newer",
			note->run.stream, note->run.name, fault.text);
}

static void note_done(struct state_job *job)
{
	struct note *note = (struct note *)job;
	struct user *user = note->written ? user_of(note->users, job->uid) : NULL;

	if (user)
		user_charge(user, USER_FILE, 1);
	free(note);
}

/* How many cursors of the user's attaches wait. */
static unsigned notes_of(const struct state_jobs *jobs, uid_t uid)
{
	const struct state_job *job;
	unsigned n = 0;

	TAILQ_FOREACH(job, &jobs->waiting, others)
	n += job->work == note_work && job->uid == uid;
	return n;
}

void state_attached(const struct session *s, const void *bytes, size_t n)
{
	struct state_jobs *jobs = &s->control->state.jobs;
	const struct state_run run = state_run(s);
	uid_t uid = s->connection->uid;
	struct note *note = notes_of(jobs, uid) < NOTES_EACH ? calloc(1, sizeof(*note) + n) : NULL;

	if (!note) {
		log_client(uid, LOG_WARNING,
			"stream %s, run %s: its cursor is not saved: too many of uid %u wait for "
			"state_dir; tokctl --run knows no mixes that are newer, before the next "
			"attach",
			run.stream, run.name, (unsigned)uid);
		return;
	}
	*note = (struct note){.job = {.uid = uid, .work = note_work, .done = note_done},
		.run = run,
		.users = &s->control->users,
		.n = n};
	memcpy(note->bytes, bytes, n);
	state_give(jobs, NULL, &note->job);
}

/* ---- where it is ---- */

/* In the pool. */
static void start_work(struct state_job *job)
{
	const struct state *state =
		(struct state *)((char *)job->jobs - offsetof(struct state, jobs));

	if (!config_may_write(state->dir))
		log_line(LOG_WARNING,
			"state_dir: uid %u may not write to %s: checkpoints will fail; chown it, "
			"or name another state_dir",
			(unsigned)geteuid(), state->dir);
}

static void start_done(struct state_job *job)
{
	free(job);
}

void state_start(struct state *state, const struct config *config, uv_loop_t *loop)
{
	struct state_job *job = calloc(1, sizeof(*job));

	*state = (struct state){.dir = config->state_dir};
	state_jobs_init(&state->jobs, loop);
	if (!job)
		return;
	*job = (struct state_job){.work = start_work, .done = start_done};
	state_give(&state->jobs, NULL, job);
}

bool state_place(struct config *config, bool private)
{
	char *first = config_state_place(config, 0), *own = NULL;
	bool named;

	if (!first)
		return false;
	free(config->state_dir);
	config->state_dir = first;
	/* Do not touch a state_dir that the config names, except in embedded mode: it may hang. */
	if (!private && config->has_state_dir)
		return true;
	/* Private daemons of several projects must not share the default one. */
	named = config->has_state_dir || getenv("STATE_DIRECTORY");
	if ((!private || named) && config_may_write(first))
		return true;
	own = config_state_place(config, 1);
	if (!own || !config_may_write(own)) {
		free(own); /* the start warns that checkpoints will fail */
		return true;
	}
	if (config_may_write(first))
		log_line(LOG_NOTE, "state_dir: %s, because a private daemon shares none", own);
	else
		log_line(LOG_NOTE, "state_dir: %s, because uid %u may not write to %s", own,
			(unsigned)geteuid(), first);
	free(config->state_dir);
	config->state_dir = own;
	return true;
}
