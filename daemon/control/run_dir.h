/*
 * The directory of a run, STATE_DIR/STREAM/RUN: who may write there, and a lock so that one daemon
 * writes at a time.
 *
 *   .owner     the uid that the run belongs to: the first one other than root and admin_uids that
 *              anything was written for
 *   .HEX.new   a temporary file with a random name. One that is there while we hold the lock was
 *              left over by a daemon that was killed, and is removed
 *
 * While a daemon writes in a run's directory it locks a byte of STATE_DIR/.lock. Several daemons
 * may share a state_dir: a new one starts while the old one drains.
 *
 * All of this blocks: only the keeper's thread calls it. The locks belong to a process (fcntl):
 * they work over NFS as well, they end with the process, and the kernel tells which process has
 * them.
 */
#ifndef TOKEND_RUN_DIR_H
#define TOKEND_RUN_DIR_H

#include "proto/fault.h"
#include "proto/limits.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define RUN_NOBODY ((uid_t)-1) /* owner of a run that has none */

/* What the keeper's thread knows of STATE_DIR/.lock. */
struct run_locks;

struct run_locks *run_locks_new(void); /* NULL: out of memory */
void run_locks_free(struct run_locks *locks);

/* What a job of the keeper says about a run. Holds copies: a job may outlive everything else. */
struct run_place {
	char state_dir[PATH_MAX];
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	struct run_locks *locks;
	uid_t uid;	 /* who asks */
	bool privileged; /* root and admin_uids: may write in any run */
	bool clean;	 /* remove left-over files */
};

struct run_dir {
	int at; /* the directory */
	struct run_locks *locks;
	off_t lock; /* its byte of the lock file, locked; 0: none */
	uid_t owner;
	char path[PATH_MAX];
};

/*
 * Creates the directory if it is not there, locks it, and makes @place's uid, unless privileged,
 * the owner if there is none. False: nothing to close; dir->owner is the owner as far as it is
 * known. FAULT_PERMISSION: the run belongs to that owner.
 */
bool run_dir_open(struct run_dir *dir, const struct run_place *place, struct fault *fault);
void run_dir_close(struct run_dir *dir);
/* Says once which other daemon uses this state_dir. */
void run_dir_greet(const struct run_place *place);
/* The owner of the run in directory @path, or RUN_NOBODY, without a lock. FAULT_DATA: the file that
 * says so is damaged. */
bool run_dir_owner(const char *path, uid_t *owner, struct fault *fault);
/* Removes left-over files where there are any and nobody writes. Returns the number of other files.
 */
unsigned run_dir_sweep(const struct run_place *place);
/* STATE_DIR/STREAM/RUN in @path. False: too long. */
bool run_dir_path(const struct run_place *place, char path[PATH_MAX], struct fault *fault);

#endif
