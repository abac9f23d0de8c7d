/*
 * Runs, and state_dir, where the daemon keeps their snapshots: the bytes of cursors under tags, in
 * STATE_DIR/STREAM/RUN/TAG.cursor. A run is stream, user and name. Runs of users other than root,
 * admin_uids and the daemon's own user are called NAME@UID; only these three may use any run.
 *
 * A save returns when file and directories are on disk: a temporary file is written, fsynced and
 * renamed, and the directory is fsynced. After a power cut or a kill the tag is the old snapshot or
 * the new one. Several daemons may share a state_dir.
 */
#include "daemon/control/control.h"

#include "proto/cursor.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <assert.h>
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
	NAME_BYTES = LIMIT_NAME_BYTES + 16,
	NOTES_EACH = 256, /* cursors of one user's attaches that may wait for state_dir */
};

/* ---- jobs ---- */

void state_init(struct state *state, uv_loop_t *loop, const char *dir)
{
	*state = (struct state){.loop = loop, .dir = dir};
	TAILQ_INIT(&state->waiting);
}

/* In the pool. */
static void job_work(uv_work_t *pool)
{
	struct state_job *job = pool->data;

	job->work(job);
}

static void job_end(struct state_job *job)
{
	job->state->jobs--;
	if (job->connection)
		job->connection->errand = NULL;
	job->done(job);
}

static void begin_next(struct state *state);

static void job_done(uv_work_t *pool, int status)
{
	struct state_job *job = pool->data;
	struct state *state = job->state;

	(void)status;
	assert(state->running == job && state->jobs > 0);
	state->running = NULL;
	job_end(job);
	begin_next(state);
}

static void begin_next(struct state *state)
{
	struct state_job *job = TAILQ_FIRST(&state->waiting);

	if (state->running || !job)
		return;
	TAILQ_REMOVE(&state->waiting, job, others);
	state->running = job;
	state->begun_ms = uv_now(state->loop);
	job->pool.data = job;
	uv_queue_work(state->loop, &job->pool, job_work, job_done);
}

void state_give(struct state *state, struct connection *c, struct state_job *job)
{
	assert(!c || !c->errand);
	job->state = state;
	job->connection = c;
	job->since_ms = uv_now(state->loop);
	if (c)
		c->errand = job;
	state->jobs++;
	TAILQ_INSERT_TAIL(&state->waiting, job, others);
	begin_next(state);
}

void state_forget(struct connection *c)
{
	struct state_job *job = c->errand;

	if (!job)
		return;
	job->connection = NULL;
	c->errand = NULL;
	if (job == job->state->running)
		return;
	TAILQ_REMOVE(&job->state->waiting, job, others);
	job_end(job);
}

void state_clock(struct connection *c)
{
	const struct state_job *job = c->errand;
	struct fault fault;

	if (!job || connection_now(c) - job->since_ms < STATE_DEADLINE_MS)
		return;
	fault_set_passing(&fault, FAULT_STATE_DIR, "",
		"state_dir has not answered for %d s; check its file system, then try again",
		STATE_DEADLINE_MS / 1000);
	log_client(c->uid, LOG_ERROR, "pid %d: %s", (int)c->pid, fault.text);
	(c->session && !c->session->fed ? connection_refuse : connection_error)(
		c, job->serial, &fault);
	state_forget(c);
}

uint64_t state_busy_ms(const struct state *state)
{
	return state->running ? uv_now(state->loop) - state->begun_ms : 0;
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

/* Closes @fd, unless it is -1, and keeps errno. */
static void close_quietly(int fd)
{
	int error = errno;

	if (fd >= 0)
		close(fd);
	errno = error;
}

/* Removes @name from directory @at, and keeps errno. */
static void unlink_quietly(int at, const char *name, int flags)
{
	int error = errno;

	unlinkat(at, name, flags);
	errno = error;
}

/* Makes a new directory in @at durable. We cannot have created an old one where we may not read, or
 * that cannot be synced. False with errno. */
static bool sync_names(int at, bool made)
{
	return fsync(at) == 0 || (!made && (errno == EBADF || errno == EINVAL || errno == EROFS));
}

/*
 * Opens directory @name of @at, and closes @at. @make: creates it. @sync: makes it durable, also if
 * it exists, because its daemon may have been killed before that. -1 with errno.
 */
static int enter(int at, const char *name, int flags, bool make, bool sync)
{
	bool made = make && mkdirat(at, name, 0755) == 0, good = !make || made || errno == EEXIST;
	int fd = -1;

	if (good && (made || sync) && !sync_names(at, made)) {
		good = false;
		if (made)
			unlink_quietly(at, name, AT_REMOVEDIR); /* the next save would find it */
	}
	flags |= O_DIRECTORY | O_CLOEXEC;
	if (good)
		fd = openat(at, name, flags | O_RDONLY);
	if (good && fd < 0 && errno == EACCES)
		fd = openat(at, name, flags | O_PATH);
	close_quietly(at);
	return fd;
}

/* Opens the run's directory. @make: creates it durably. Only state_dir may be a link. Or -1. */
static int open_run(const struct state_run *run, bool make)
{
	struct state *state = run->state;
	char path[PATH_MAX], *rest = path, *name;
	int at = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert(state->dir[0] == '/' && strlen(state->dir) < sizeof(path));
	strcpy(path, state->dir + 1);
	while (at >= 0 && (name = strsep(&rest, "/")))
		if (*name)
			at = enter(at, name, 0, make, make && !state->durable);
	if (at >= 0)
		state->durable |= make;
	if (at >= 0)
		at = enter(at, run->stream, O_NOFOLLOW, make, make);
	return at >= 0 ? enter(at, run->name, O_NOFOLLOW, make, make) : -1;
}

/* ---- files ---- */

/* Creates file @name in directory @at, and fsyncs it. False with errno. */
static bool write_file(int at, const char *name, const char *bytes, size_t n)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	ssize_t done;

	if (fd < 0)
		return false;
	while (n > 0 && (done = write(fd, bytes, n)) > 0) {
		bytes += done;
		n -= (size_t)done;
	}

	bool good = n == 0 && fsync(fd) == 0;

	close_quietly(fd);
	return good;
}

/* Replaces file @name in directory @at. False with errno: it is as before, or replaced, but perhaps
 * not after a power cut. */
static bool replace_file(int at, const char *name, const char *bytes, size_t n)
{
	char temporary[32];
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return false;
	snprintf(temporary, sizeof(temporary), ".%016" PRIx64 ".new", random);
	if (write_file(at, temporary, bytes, n) && renameat(at, temporary, at, name) == 0)
		return fsync(at) == 0;
	unlink_quietly(at, temporary, 0);
	return false;
}

/* ---- snapshots ---- */

static const char *path_of(const struct state_run *run, const char *tag, char path[PATH_MAX])
{
	snprintf(
		path, PATH_MAX, "%s/%s/%s/%s.cursor", run->state->dir, run->stream, run->name, tag);
	return path;
}

bool state_save(const struct state_run *run, const char *tag, const void *bytes, size_t n,
	struct fault *fault)
{
	int at = open_run(run, true), error;
	char name[NAME_BYTES], path[PATH_MAX];
	bool saved = false;

	snprintf(name, sizeof(name), "%s.cursor", tag);
	if (at >= 0)
		saved = replace_file(at, name, bytes, n);
	close_quietly(at);
	error = errno;
	return saved || fault_errno(fault, error, "state_dir", "%s: %s", path_of(run, tag, path),
				strerror(error));
}

size_t state_load(const struct state_run *run, const char *tag, void *bytes, struct fault *fault)
{
	int at = open_run(run, false), fd = -1, error;
	char *to = bytes, name[NAME_BYTES], path[PATH_MAX];
	ssize_t n = -1;

	snprintf(name, sizeof(name), "%s.cursor", tag);
	if (at >= 0) /* a FIFO must not make it wait for a writer */
		fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	close_quietly(at);
	while (fd >= 0 && (n = read(fd, to, (size_t)((char *)bytes + LIMIT_CURSOR_BYTES - to))) > 0)
		to += n;
	close_quietly(fd);
	error = errno;
	path_of(run, tag, path);
	if (n == 0 && to > (char *)bytes)
		return (size_t)(to - (char *)bytes);
	if (n == 0)
		fault_set(fault, FAULT_DATA, "tag", "%s: the file is empty, or not a regular file",
			path);
	else if (error == ENOENT)
		fault_errno(fault, ENOENT, "tag",
			"run %s of stream %s has no snapshot %s (%s); RUN/TAG names one of another "
			"run",
			run->name, run->stream, tag, path);
	else
		fault_errno(fault, error, "state_dir", "%s: %s", path, strerror(error));
	return 0;
}

/* The mixes of a cursor, as cursor_encode_mixes(). 0: it is invalid. */
static size_t mixes_of(const void *bytes, size_t n, char mixes[LIMIT_CURSOR_BYTES])
{
	struct cursor cursor;
	struct fault fault;

	if (!cursor_decode(&cursor, bytes, n, &fault))
		return 0;
	n = cursor_encode_mixes(&cursor, mixes, LIMIT_CURSOR_BYTES);
	cursor_free(&cursor);
	return n;
}

bool state_note(const struct state_run *run, const void *bytes, size_t n, bool *written,
	struct fault *fault)
{
	char now[LIMIT_CURSOR_BYTES], mixes[2][LIMIT_CURSOR_BYTES];
	size_t old = mixes_of(now, state_load(run, PLACE_RUN_TAG, now, fault), mixes[0]);

	*written = old == 0 || mixes_of(bytes, n, mixes[1]) != old ||
		   memcmp(mixes[0], mixes[1], old) != 0;
	return !*written || state_save(run, PLACE_RUN_TAG, bytes, n, fault);
}

/* ---- jobs that save ---- */

struct save {
	struct state_job job; /* first member */
	struct user *user;
	const struct stream *stream;
	struct state_run run;
	char tag[LIMIT_NAME_BYTES + 1];
	bool ok, written;
	struct fault fault;
	size_t n;
	char bytes[]; /* the cursor */
};

struct state_run state_run(const struct session *s)
{
	struct state_run run = {.state = &s->control->state};

	memcpy(run.stream, s->stream->config->name, sizeof(run.stream));
	memcpy(run.name, s->run, sizeof(run.name));
	return run;
}

/* NULL: out of memory. */
static struct save *save_new(const struct session *s, const void *bytes, size_t n)
{
	struct save *job = calloc(1, sizeof(*job) + n);

	if (!job)
		return NULL;
	job->user = s->connection->user;
	job->stream = s->stream;
	job->run = state_run(s);
	job->n = n;
	memcpy(job->bytes, bytes, n);
	return job;
}

/* ---- a client saves ---- */

/* In the pool. */
static void checkpoint_work(struct state_job *work)
{
	struct save *job = (struct save *)work;
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

static void checkpoint_done(struct state_job *work)
{
	struct save *job = (struct save *)work;
	struct connection *c = work->connection;
	struct wire w = {.op = WIRE_SAVED};
	char path[PATH_MAX];

	if (job->ok) {
		job->stream->counts->snapshots++;
		job->stream->counts->snapshot_s = time(NULL);
	} else if (job->fault.code) { /* otherwise the client has left before */
		count_failed(job->stream);
	}
	if (c && job->ok) {
		wire_set_text(&w, WIRE_TAG, job->tag);
		wire_set_text(&w, WIRE_PATH, path_of(&job->run, job->tag, path));
		connection_send(c, work->serial, &w);
	} else if (c) {
		log_client(c->uid, LOG_ERROR, "snapshot %s not saved: %s: %s", job->tag,
			job->fault.field, job->fault.text);
		connection_error(c, work->serial, &job->fault);
	}
	free(job);
}

void state_checkpoint(struct connection *c, const struct wire *w)
{
	uint64_t busy_ms = state_busy_ms(&c->control->state);
	struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);
	struct save *job = NULL;
	char tag[LIMIT_NAME_BYTES + 1];
	struct fault fault;

	if (!wire_text(w, WIRE_TAG, tag, sizeof(tag)) || !wire_name_ok(tag))
		fault_set(&fault, FAULT_CHECKPOINT, "tag", "must be " PHRASE_NAME);
	else if (busy_ms >= STATE_DEADLINE_MS)
		fault_set(&fault, FAULT_CHECKPOINT, "state_dir",
			"has not answered for %" PRIu64
			" s; the snapshot is not saved, save it again later",
			busy_ms / 1000);
	else if (!(job = save_new(c->session, b.at, b.n)))
		fault_set_passing(&fault, FAULT_MEMORY, "tag", PHRASE_MEMORY);
	if (!job) {
		count_failed(c->session->stream);
		connection_error(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	job->job.serial = wire_number(w, WIRE_SERIAL);
	job->job.work = checkpoint_work;
	job->job.done = checkpoint_done;
	memcpy(job->tag, tag, sizeof(tag));
	user_charge(c->user, USER_FILE);
	state_give(&c->control->state, c, &job->job);
}

/* ---- a session attaches ---- */

/* In the pool. */
static void note_work(struct state_job *work)
{
	struct save *job = (struct save *)work;

	job->ok = state_note(&job->run, job->bytes, job->n, &job->written, &job->fault);
}

static void note_done(struct state_job *work)
{
	struct save *job = (struct save *)work;

	job->user->notes--;
	if (job->written)
		user_charge(job->user, USER_FILE);
	if (!job->ok)
		log_client(job->user->uid, LOG_WARNING,
			"stream %s, run %s: its cursor is not saved: %s; the run continues, but "
			"tokctl --run knows no mixes that are newer",
			job->run.stream, job->run.name, job->fault.text);
	free(job);
}

void state_attached(const struct session *s, const void *bytes, size_t n)
{
	struct user *user = s->connection->user;
	struct save *job = user->notes < NOTES_EACH ? save_new(s, bytes, n) : NULL;

	if (!job) {
		log_client(user->uid, LOG_WARNING,
			"stream %s, run %s: its cursor is not saved: too many of uid %u wait for "
			"state_dir; tokctl --run knows no mixes that are newer, before the next "
			"attach",
			s->stream->config->name, s->run, (unsigned)user->uid);
		return;
	}
	user->notes++;
	job->job.work = note_work;
	job->job.done = note_done;
	state_give(&s->control->state, NULL, &job->job);
}

/* ---- where it is ---- */

char *state_place(const struct config *config, bool private)
{
	char *first = config_state_place(config, 0), *own = NULL;
	bool named = config->has_state_dir || getenv("STATE_DIRECTORY");

	if (!first)
		return NULL;
	/* Do not touch a state_dir that the config names, except in embedded mode: it may hang.
	 * Private daemons of several projects must not share the default one. */
	if (private ? !named || !config_may_write(first)
		    : !config->has_state_dir && !config_may_write(first))
		own = config_state_place(config, 1);
	if (own && config_may_write(own)) { /* otherwise saves will fail */
		if (private && !named)
			log_line(LOG_NOTE, "state_dir: %s, because a private daemon shares none",
				own);
		else
			log_line(LOG_NOTE, "state_dir: %s, because uid %u may not write to %s", own,
				(unsigned)geteuid(), first);
		free(first);
		first = own;
		own = NULL;
	}
	free(own);
	return first;
}
