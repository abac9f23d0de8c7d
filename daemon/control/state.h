/*
 * Runs, and state_dir, where the daemon keeps their snapshots: cursors under tags, in
 * STATE_DIR/STREAM/RUN/TAG.cursor. A file contains exactly the bytes of the trainer's cursor.
 *
 * A run is stream, user and name. Runs of users other than root, admin_uids and the daemon's own
 * user are called NAME@UID. Only these three may use a run of another user.
 *
 * A save returns when file and directories are on disk: a temporary file is written, fsynced and
 * renamed, and the directory is fsynced. After a power cut or a kill the tag is the old snapshot or
 * the new one. Several daemons may share a state_dir.
 *
 * Calls on state_dir may hang, so they are jobs: one at a time in libuv's pool, in the order in
 * which they were given. Only a client that waits for a job notices, until STATE_DEADLINE_MS have
 * passed. All on the loop, except where it says otherwise.
 */
#ifndef TOKEND_STATE_H
#define TOKEND_STATE_H

#include "daemon/config/config.h"
#include "proto/fault.h"
#include "proto/limits.h"

#include <sys/queue.h>
#include <uv.h>

struct connection;
struct control;
struct session;
struct wire;

/* ---- jobs ---- */

enum { STATE_DEADLINE_MS = 20000 };

struct state_job {
	TAILQ_ENTRY(state_job) others;
	struct state_jobs *jobs;
	uv_work_t pool;
	uid_t uid; /* the user that asks */
	/* The connection that waits for it, as its `errand`; NULL: none, or none any more. */
	struct connection *connection;
	uint64_t serial;   /* of its query */
	uint64_t since_ms; /* when it was given */
	bool dropped;	   /* its connection has gone: skipped unless it has begun */
	void (*work)(struct state_job *job); /* in the pool; may block */
	void (*done)(struct state_job *job); /* always called; frees the job */
};

struct state_jobs {
	uv_loop_t *loop;
	const char *name; /* of the place that may hang: "state_dir", "the cache's disk" */
	TAILQ_HEAD(, state_job) waiting;
	struct state_job *running;
	uint64_t begun_ms; /* when that began */
	unsigned n;	   /* waiting or running */
};

void state_jobs_init(struct state_jobs *jobs, uv_loop_t *loop, const char *name);
/* Its uid, work and done are set; serial, too, if @c is to wait for it. */
void state_give(struct state_jobs *jobs, struct connection *c, struct state_job *job);
/* Call it in done(). Returns the connection that waits, or NULL. */
struct connection *state_back(struct state_job *job);
/* The connection closes, or has its reply: it does not wait any more. */
void state_forget(struct connection *c);
/* Call once a second for each connection: refuses it what it has waited for until the deadline. */
void state_clock(struct connection *c);
/* How long the present job has been running; 0: none. */
uint64_t state_busy_ms(const struct state_jobs *jobs);

/* ---- state_dir ---- */

struct state {
	struct state_jobs jobs;
	const char *dir;
	bool durable; /* it is, and its parents are; used by jobs */
};

/* Names a run in a job. */
struct state_run {
	struct state *state;
	char stream[LIMIT_NAME_BYTES + 1], name[LIMIT_NAME_BYTES + 1];
};

/*
 * Replaces config->state_dir: by $STATE_DIRECTORY (from systemd) if the config names none; by a
 * directory of this config and user, if the config names none and @private is set, or if this user
 * may not write there. @private: a private daemon. False: out of memory.
 */
bool state_place(struct config *config, bool private);

/* These block: only jobs call them. */
bool state_save(const struct state_run *run, const char *tag, const void *bytes, size_t n,
	struct fault *fault);
/* @bytes: a buffer of LIMIT_CURSOR_BYTES. Returns the length, or 0. The contents are not checked.
 */
size_t state_load(const struct state_run *run, const char *tag, void *bytes, struct fault *fault);
/* Saves the cursor as the run's, unless that has the same mixes. */
bool state_note(const struct state_run *run, const void *bytes, size_t n, bool *written,
	struct fault *fault);

/* Handles a checkpoint message of an attached connection. */
void state_checkpoint(struct connection *c, const struct wire *w);
/* The session's run. */
struct state_run state_run(const struct session *s);
/* A session attaches at this cursor, or goes on at it: saves it as the run's, soon. */
void state_attached(const struct session *s, const void *bytes, size_t n);

/* Handles a cache message (cached.c): what is in the cache, or the removal of a dataset. */
void cached_query(struct connection *c, const struct wire *w);

/* ---- runs ---- */

/* Is @uid root, the daemon's own user or in admin_uids? Such users may use each run. */
bool runs_privileged(const struct config *config, uid_t uid);
/* May @uid use run @run? */
bool runs_may(const struct config *config, uid_t uid, const char *run);
/* Adds @UID to @run, as @uid calls it, unless the user is privileged. False: FAULT_ATTACH, the name
 * is too long, or another user's. */
bool runs_name(const struct config *config, uid_t uid, char run[LIMIT_NAME_BYTES + 1],
	struct fault *fault);

#endif
