/*
 * The owners of runs. A run belongs to the first user, other than root and admin_uids, who attached
 * to it or saved a snapshot in it. Only its owner, root and admin_uids may attach to it, save its
 * snapshots and change it. state_dir stores the owners (run_dir.h), and every write there checks
 * them. The loop uses a copy in memory, read when the daemon starts, so no attach waits for
 * state_dir. All on the loop, except runs_note().
 *
 * An unnamed run is called "default", or default@UID if "default" belongs to another user.
 */
#ifndef TOKEND_RUNS_H
#define TOKEND_RUNS_H

#include "daemon/config/config.h"
#include "daemon/control/keeper.h"
#include "daemon/control/mix_log.h"
#include "daemon/control/run_dir.h"
#include "daemon/control/users.h"
#include "proto/fault.h"

struct runs;

struct runs_options {
	const struct config *config;
	struct keeper *keeper;
	struct users *users;
	/* state_dir shows that @owner has the run: sessions of other users must end. */
	void (*on_owner)(void *context, const char *stream, const char *run, uid_t owner);
	void *context;
};

/* Reads the owners of all runs in state_dir; waits up to 2 s for that. NULL: out of memory. */
struct runs *runs_start(const struct runs_options *options);
/* Stops removing left-over files from state_dir. */
void runs_stop(struct runs *runs);
/* Call it after keeper_stop() has ended the keeper's thread, which uses this memory. */
void runs_free(struct runs *runs);
/* Have the owners been read? Until then anybody may attach to any run. */
bool runs_known(const struct runs *runs);

/* Another config has the privileged users from now on. Its state_dir is the same. */
void runs_config(struct runs *runs, const struct config *config);
/* Is @uid root or in admin_uids? */
bool runs_privileged(const struct config *config, uid_t uid);
/* May @uid use the run: is it the owner or privileged, or is there no owner? */
bool runs_may(struct runs *runs, uid_t uid, const char *stream, const char *run);
/* Does the run belong to @uid? */
bool runs_owns(struct runs *runs, uid_t uid, const char *stream, const char *run);
/* If @run is "default" and belongs to another user, changes it to default@UID. @run: a buffer of
 * LIMIT_NAME_BYTES + 1. */
void runs_rename(struct runs *runs, uid_t uid, const char *stream, char *run);

/* May @uid attach to @run? Renames @run as runs_rename() does. False: FAULT_ATTACH. */
bool runs_enter(struct runs *runs, uid_t uid, const char *stream, char *run, struct fault *fault);
/* Call it before an attach: may the user write a mix log, and begin this run if it is new? */
bool runs_begin(struct runs *runs, struct user *user, const char *stream, const char *run,
	uint64_t now_ms, struct fault *fault);
/* A session attaches: if the run has no owner, its user becomes the owner, unless it is privileged.
 * False: another user was faster, perhaps at another daemon with this state_dir (see @noted). */
bool runs_claim(struct runs *runs, uid_t uid, const char *stream, const char *run,
	const struct mix_noted *noted, struct fault *fault);

/* Fills @place, for a job of the keeper. */
void runs_place(
	struct runs *runs, uid_t uid, const char *stream, const char *run, struct run_place *place);
/* Call it in a job's done(): the job has opened the run's directory, which contains no left-over
 * files now. */
void runs_cleaned(struct runs *runs, const struct run_place *place);
/* state_dir shows that @owner has the run (RUN_NOBODY: does nothing). Calls on_owner if it is new.
 */
void runs_found(struct runs *runs, const char *stream, const char *run, uid_t owner);

/*
 * In libuv's pool: adds the cursor at which a session attaches to the run's mix log. Waits up to
 * 250 ms, and not at all while state_dir does not answer; the cursor is then added later. Returns
 * what is known so far.
 */
struct mix_noted runs_note(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n);
/* On the loop: the same, without waiting. */
void runs_note_later(struct runs *runs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n);

#endif
