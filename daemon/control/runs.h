/*
 * Whose each run is. A run belongs to the first user other than root and admin_uids who attached to
 * it or saved in it. Root and admin_uids may do everything; everybody else may not attach to it,
 * save its snapshots or change it. state_dir holds the truth (run_dir.h), and whatever is written
 * there is checked against it. The loop decides by a copy in memory, read when the daemon starts:
 * no attach waits for state_dir.
 *
 * A run without a name is called "default". If that belongs to somebody else, it is called
 * default@UID.
 */
#ifndef TOKEND_RUNS_H
#define TOKEND_RUNS_H

#include "daemon/config/config.h"
#include "daemon/control/keeper.h"
#include "daemon/control/mix_log.h"
#include "daemon/control/quota.h"
#include "daemon/control/run_dir.h"
#include "proto/fault.h"

struct runs;

struct runs_options {
	const struct config *config;
	struct keeper *keeper;
	struct quotas *quotas;
	/* On the loop: @owner turned out to have the run. Sessions of others are to end. */
	void (*on_owner)(void *context, const char *stream, const char *run, uid_t owner);
	void *context;
};

/* Reads the owners of all runs in state_dir, for which it waits a moment. NULL: out of memory. */
struct runs *runs_start(const struct runs_options *options);
/* Begins no more work on state_dir of its own. */
void runs_stop(struct runs *runs);
/* After keeper_stop(). @idle: what that returned; if false, what the keeper's thread uses stays. */
void runs_free(struct runs *runs, bool idle);
/* Have the owners been read? Until then everybody goes on as before. */
bool runs_known(const struct runs *runs);

/* May this user do everything? */
bool runs_privileged(const struct config *config, uid_t uid);
/* Does the run belong to @uid, or to nobody, or is @uid privileged? */
bool runs_may(struct runs *runs, uid_t uid, const char *stream, const char *run);
/* Does the run belong to @uid? */
bool runs_owns(struct runs *runs, uid_t uid, const char *stream, const char *run);
/* The name of this user's unnamed run, if @run is unnamed; @run has room for any name. */
void runs_rename(struct runs *runs, uid_t uid, const char *stream, char *run);

/* May @uid attach to @run? Renames it as runs_rename() does. False: FAULT_ATTACH. */
bool runs_enter(struct runs *runs, uid_t uid, const char *stream, char *run, struct fault *fault);
/* An attach is about to begin: may its user begin another run, and write its mix log? */
bool runs_begin(struct runs *runs, struct quota *quota, const char *stream, const char *run,
	uint64_t now_ms, struct fault *fault);
/* A session is attached: its user, unless privileged, becomes the owner if there is none. False:
 * another user was faster, also in another daemon with this state_dir, which @noted says. */
bool runs_claim(struct runs *runs, uid_t uid, const char *stream, const char *run,
	const struct mix_noted *noted, struct fault *fault);

/* Fills what a job says about a run. */
void runs_place(
	struct runs *runs, uid_t uid, const char *stream, const char *run, struct run_place *place);
/* On the loop, in a job's done(): the job has opened the run's directory, and so left nothing over
 * there. */
void runs_cleaned(struct runs *runs, const struct run_place *place);
/* state_dir says that @owner has the run; RUN_NOBODY: nothing. Calls on_owner if that is news. */
void runs_found(struct runs *runs, const char *stream, const char *run, uid_t owner);

/*
 * In libuv's pool: adds the cursor that a session attaches with to the run's mix log. Waits a
 * moment for that, and not at all while state_dir does not answer; then it is added later. Returns
 * what is known by then.
 */
struct mix_noted runs_note(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n);
/* On the loop: the same, without waiting. */
void runs_note_later(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n);

#endif
