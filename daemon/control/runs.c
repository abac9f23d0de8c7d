#include "daemon/control/runs.h"

#include "daemon/control/keeper.h"
#include "daemon/control/log.h"
#include "daemon/control/mix_log.h"
#include "daemon/control/server.h"
#include "daemon/control/snapshot_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BUCKETS = 4096,
	SCAN_MS = 2000,	   /* a start waits so long for the owners */
	NOTES_MOST = 1024, /* entries of mix logs that wait to be written */
	NOTE_MS = 250, /* an attach waits so long for its entry: logs of several daemons keep their
			  order */
};

#define UNNAMED "default"

struct run {
	struct run *next;
	uid_t owner;
	bool clean; /* no left-over files are in its directory */
	char stream[LIMIT_NAME_BYTES + 1], name[LIMIT_NAME_BYTES + 1];
};

struct runs {
	bool known;		/* the owners have been read */
	_Atomic unsigned notes; /* entries of mix logs that wait to be written */
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

/* Or a new one; NULL: out of memory. */
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

void runs_free(struct runs *runs)
{
	for (unsigned i = 0; runs && i < BUCKETS; i++)
		for (struct run *run = runs->bucket[i], *next; run; run = next) {
			next = run->next;
			free(run);
		}
	free(runs);
}

/* ---- who may ---- */

bool runs_privileged(const struct config *config, uid_t uid)
{
	for (uint32_t i = 0; i < config->admin_uids; i++)
		if (config->admin_uid[i] == uid)
			return true;
	return uid == 0;
}

static bool may(const struct server *server, uid_t uid, const char *stream, const char *name)
{
	uid_t owner = owner_of(server->runs, stream, name);

	return owner == RUN_NOBODY || owner == uid ||
	       runs_privileged(server->options->catalog->config, uid);
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

void runs_rename(const struct connection *c, const struct stream *stream, char *run)
{
	if (strcmp(run, UNNAMED) == 0 && !may(c->server, c->uid, stream->config->name, run))
		snprintf(run, LIMIT_NAME_BYTES + 1, UNNAMED "@%u", (unsigned)c->uid);
}

bool runs_enter(struct session *s, struct refusal *r)
{
	struct server *server = s->connection->server;
	const char *stream = s->stream->config->name;
	uid_t uid = s->connection->uid, kept = unnamed_of(s->run);

	if (kept != RUN_NOBODY && kept != uid &&
		!runs_privileged(server->options->catalog->config, uid))
		return refuse(r, "attach", "run",
			"%s is the name of uid %u's unnamed run: use another one", s->run,
			(unsigned)kept);
	/* Until the owners are known everybody goes on as before; runs_found() settles it. */
	if (!server->runs->known)
		return true;
	runs_rename(s->connection, s->stream, s->run);
	if (may(server, uid, stream, s->run))
		return true;
	return refuse(r, "attach", "run",
		"run %s belongs to uid %u, and uid %u is not in admin_uids: use another "
		"name for the run",
		s->run, (unsigned)owner_of(server->runs, stream, s->run), (unsigned)uid);
}

bool runs_begin(struct session *s, struct refusal *r)
{
	struct server *server = s->connection->server;
	struct quota *quota = s->connection->quota;
	const char *stream = s->stream->config->name;
	uint64_t now = uv_now(&server->loop);

	if (!quota_may_write(quota, now, r)) {
		r->code = "attach";
		return false;
	}
	if (find(server->runs, stream, s->run))
		return true;
	if (!quota_may_begin(quota, now, r))
		return false;
	quota_begun(quota);
	return get(server->runs, stream, s->run) ||
	       refuse_passing(r, "memory", "run", "out of memory");
}

static void set_owner(struct server *server, struct run *run, uid_t owner)
{
	struct quota *quota = quota_of(server->quotas, owner);

	run->owner = owner;
	if (quota)
		quota_has_run(quota);
}

bool runs_claim(struct session *s, const struct mix_log_noted *noted, struct refusal *r)
{
	struct server *server = s->connection->server;
	struct run *run = get(server->runs, s->stream->config->name, s->run);
	uid_t uid = s->connection->uid;

	if (!run)
		return refuse_passing(r, "memory", "run", "out of memory");
	if (noted->owner != RUN_NOBODY)
		runs_found(server, run->stream, run->name, noted->owner);
	if (run->owner == RUN_NOBODY && !runs_privileged(server->options->catalog->config, uid))
		set_owner(server, run, uid);
	if (!server->runs->known || may(server, uid, run->stream, run->name))
		return true;
	return refuse_passing(r, "attach", "run", "uid %u was the first in run %s: attach again",
		(unsigned)run->owner, run->name);
}

static bool of_run(const struct session *s, const char *stream, const char *run)
{
	return s && s->fed && !s->connection->closing &&
	       strcmp(s->stream->config->name, stream) == 0 && strcmp(s->run, run) == 0;
}

/* Before the owners are known: does everybody who is attached to the run have this uid? */
static bool is_all_of(const struct server *server, uid_t uid, const char *stream, const char *run)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (of_run(server->session[id], stream, run) &&
			server->session[id]->connection->uid != uid)
			return false;
	return true;
}

bool runs_may_change(const struct connection *c, const struct stream *stream, const char *run)
{
	const struct server *server = c->server;
	const char *name = stream->config->name;

	if (runs_privileged(server->options->catalog->config, c->uid))
		return true;
	return owner_of(server->runs, name, run) == c->uid &&
	       (server->runs->known || is_all_of(server, c->uid, name, run));
}

void runs_found(struct server *server, const char *stream, const char *name, uid_t owner)
{
	struct run *run = owner != RUN_NOBODY ? get(server->runs, stream, name) : NULL;

	if (!run || run->owner == owner)
		return;
	set_owner(server, run, owner);
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct session *s = server->session[id];

		if (!of_run(s, stream, name) || may(server, s->connection->uid, stream, name))
			continue;
		log_line(LOG_WARNING,
			"pid %d (uid %u): its session ends: run %s of stream %s belongs to uid %u",
			(int)s->connection->pid, (unsigned)s->connection->uid, name, stream,
			(unsigned)owner);
		connection_close(s->connection);
	}
}

/* ---- places ---- */

void runs_place(struct server *server, uid_t uid, const char *stream, const char *name,
	struct run_place *place)
{
	const struct config *config = server->options->catalog->config;
	struct run *run = find(server->runs, stream, name);

	snprintf(place->state_dir, sizeof(place->state_dir), "%s", config->state_dir);
	snprintf(place->stream, sizeof(place->stream), "%s", stream);
	snprintf(place->run, sizeof(place->run), "%s", name);
	place->uid = uid;
	place->privileged = runs_privileged(config, uid);
	place->clean = !run || !run->clean;
}

void runs_cleaned(struct server *server, const struct run_place *place)
{
	struct run *run = find(server->runs, place->stream, place->run);

	if (run)
		run->clean = true;
}

/* ---- the log of mixes ---- */

struct note {
	struct keeper_job job;
	struct server *server;
	struct run_place place;
	uint64_t checksum;
	struct mix_log_noted noted;
	size_t n;
	char bytes[];
};

static void note_work(struct keeper_job *job)
{
	struct note *note = (struct note *)job;

	mix_log_note(&note->place, note->checksum, note->bytes, note->n, &note->noted);
}

static void note_done(struct keeper_job *job)
{
	struct note *note = (struct note *)job;

	struct quota *quota = quota_of(note->server->quotas, note->place.uid);

	note->server->runs->notes--;
	if (note->noted.added)
		quota_written(quota, 1);
	if (note->noted.opened)
		runs_cleaned(note->server, &note->place);
	runs_found(note->server, note->place.stream, note->place.run, note->noted.owner);
	free(note);
}

/* NULL: there is no room for it, which is logged. Any thread. */
static struct note *note_new(struct server *server, const struct run_place *place,
	uint64_t checksum, const void *bytes, size_t n)
{
	bool room = server->runs->notes++ < NOTES_MOST;
	struct note *note = room ? calloc(1, sizeof(*note) + n) : NULL;

	if (!note) {
		server->runs->notes--;
		log_client(place->uid, LOG_WARNING,
			"the mix of stream %s, run %s, is not in the log: %u entries wait for "
			"state_dir; "
			"`tokctl "
			"--run` will not know of it before the next attach",
			place->stream, place->run, server->runs->notes);
		return NULL;
	}
	note->job = (struct keeper_job){.uid = place->uid, .work = note_work, .done = note_done};
	note->server = server;
	note->place = *place;
	note->checksum = checksum;
	note->noted = (struct mix_log_noted){.owner = RUN_NOBODY};
	note->n = n;
	memcpy(note->bytes, bytes, n);
	return note;
}

struct mix_log_noted runs_note(struct server *server, const struct run_place *place,
	uint64_t checksum, const void *bytes, size_t n)
{
	struct mix_log_noted noted = {.owner = RUN_NOBODY};
	struct note *note = note_new(server, place, checksum, bytes, n);

	if (note && keeper_await(server->keeper, &note->job, NOTE_MS)) {
		noted = note->noted;
		keeper_finish(server->keeper, &note->job);
	}
	return noted;
}

void runs_note_again(const struct session *s)
{
	const struct cursor *cursor = feed_cursor(s->feed);
	struct server *server = s->connection->server;
	char bytes[LIMIT_CURSOR_BYTES];
	size_t n = cursor_encode(cursor, bytes, sizeof(bytes));
	struct run_place place;
	struct note *note;

	runs_place(server, s->connection->uid, s->stream->config->name, s->run, &place);
	note = note_new(server, &place, mix_log_checksum(cursor), bytes, n);
	if (note)
		keeper_give(server->keeper, &note->job);
}

/* ---- what is there when the daemon starts ---- */

struct found {
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	uid_t owner;
};

/* First the owners are read, then the directories are cleaned, one a job: others do not wait for
 * all of it.
 */
struct scan {
	struct keeper_job job;
	struct server *server;
	struct run_place place;
	struct found *found;
	size_t n, room;
	size_t at; /* the next one to be cleaned */
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
	struct dirent *e;
	bool known;

	snprintf(path, sizeof(path), "%s/%s", scan->place.state_dir, stream);

	DIR *dir = opendir(path);

	while (dir && (e = readdir(dir))) {
		if (!wire_name_ok(e->d_name) || (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN))
			continue;
		memcpy(run, e->d_name, strlen(e->d_name) + 1);
		snprintf(path, sizeof(path), "%s/%s/%s", scan->place.state_dir, stream, run);

		uid_t owner = run_dir_owner(path, &known);

		if (!known && errno != ENOTDIR)
			log_line(LOG_WARNING,
				"state_dir: %s/.owner: %s: who has the run is not known", path,
				errno == EBADMSG ? "not a user number" : strerror(errno));
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
			"state_dir: uid %u may not write to %s: checkpoints will fail",
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

/* The next directory that nobody has written in meanwhile. */
static void sweep_done(struct keeper_job *job)
{
	struct scan *scan = (struct scan *)job;
	struct run *run = NULL;

	while (scan->at < scan->n && !scan->server->stopping) {
		const struct found *f = &scan->found[scan->at++];

		run = get(scan->server->runs, f->stream, f->run);
		if (run && !run->clean)
			break;
		run = NULL;
	}
	if (!run) {
		scan_free(scan);
		return;
	}
	runs_place(scan->server, 0, run->stream, run->name, &scan->place);
	scan->job.work = sweep_work;
	scan->job.done = sweep_done;
	keeper_give(scan->server->keeper, &scan->job);
}

static void scan_done(struct keeper_job *job)
{
	struct scan *scan = (struct scan *)job;
	struct server *server = scan->server;

	server->runs->known = true;
	for (size_t i = 0; i < scan->n; i++)
		runs_found(server, scan->found[i].stream, scan->found[i].run, scan->found[i].owner);
	sweep_done(job);
}

static struct scan *scan_new(struct server *server)
{
	const struct config *config = server->options->catalog->config;
	struct scan *scan = calloc(1, sizeof(*scan) + config->streams * sizeof(scan->stream[0]));

	if (!scan)
		return NULL;
	scan->job = (struct keeper_job){
		.uid = (uid_t)KEEPER_NOBODY, .work = scan_work, .done = scan_done};
	scan->server = server;
	scan->streams = config->streams;
	snprintf(scan->place.state_dir, sizeof(scan->place.state_dir), "%s", config->state_dir);
	for (uint32_t i = 0; i < config->streams; i++)
		memcpy(scan->stream[i], config->stream[i].name, sizeof(scan->stream[i]));
	return scan;
}

struct runs *runs_start(struct server *server)
{
	struct runs *runs = calloc(1, sizeof(*runs));
	struct scan *scan = runs ? scan_new(server) : NULL;

	if (!scan) {
		free(runs);
		return NULL;
	}
	server->runs = runs;
	keeper_give(server->keeper, &scan->job);
	if (!keeper_wait(server->keeper, SCAN_MS))
		log_line(LOG_WARNING,
			"state_dir %s has not answered for %d s: whose the runs are is not known "
			"yet; going "
			"on",
			server->options->catalog->config->state_dir, SCAN_MS / 1000);
	return runs;
}
