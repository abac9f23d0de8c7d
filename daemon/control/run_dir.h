/*
 * The directory of a run, STATE_DIR/STREAM/RUN: its owner, and a lock that lets one daemon write at
 * a time. Besides snapshots and the mix log it contains
 *
 *   .owner     the uid that owns the run: the first user, other than root and admin_uids, for whom
 *              something was written
 *   .HEX.new   a temporary file with a random name. If it exists while we have the lock, a killed
 *              daemon left it, and it is removed
 *
 * While a daemon writes to a run's directory, it locks a byte of STATE_DIR/.lock. Several daemons
 * may share a state_dir, for example an old one that stops and a new one that starts.
 *
 * These functions block: only the keeper's thread calls them. The locks are fcntl() locks: they
 * work over NFS, they end with the process, and the kernel reports which process has them.
 */
#ifndef TOKEND_RUN_DIR_H
#define TOKEND_RUN_DIR_H

#include "proto/fault.h"
#include "proto/limits.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Opens a run's directory, or one in it: never through a link. */
#define RUN_DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define RUN_NOBODY    ((uid_t)-1) /* the run has no owner */

/* STATE_DIR/.lock, as the keeper's thread has it open. */
struct run_locks;

struct run_locks *run_locks_new(void); /* NULL: out of memory */
void run_locks_free(struct run_locks *locks);

/* Names a run in a job of the keeper. It holds copies, because a job may outlive everything else.
 */
struct run_place {
	char state_dir[PATH_MAX];
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	struct run_locks *locks;
	uid_t uid;	 /* the user that asks */
	bool privileged; /* root or in admin_uids: may write to any run */
	bool clean; /* a killed daemon's work may be left: remove its files, sync its directories */
};

struct run_dir {
	int at; /* the directory */
	struct run_locks *locks;
	off_t lock; /* the locked byte of the lock file; 0: none */
	uid_t owner;
	char path[PATH_MAX];
};

/*
 * Creates the directory if it does not exist, and locks it. If the run has no owner, @place's uid
 * becomes the owner, unless it is privileged. False: nothing to close; dir->owner is the owner, or
 * RUN_NOBODY if that is unknown. FAULT_PERMISSION: the run belongs to another user.
 */
bool run_dir_open(struct run_dir *dir, const struct run_place *place, struct fault *fault);
void run_dir_close(struct run_dir *dir);
/* Logs once if another daemon uses this state_dir. */
void run_dir_greet(const struct run_place *place);
/* Reads the owner of the run in directory @path, or RUN_NOBODY, without a lock. FAULT_DATA: .owner
 * is damaged. */
bool run_dir_owner(const char *path, uid_t *owner, struct fault *fault);
/* Removes left-over files, unless another daemon writes now. Returns the number of other files. */
unsigned run_dir_sweep(const struct run_place *place);
/* Writes STATE_DIR/STREAM/RUN to @path. False: too long. */
bool run_dir_path(const struct run_place *place, char path[PATH_MAX], struct fault *fault);

#endif
