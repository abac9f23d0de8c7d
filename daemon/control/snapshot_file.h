/*
 * Snapshots: cursors kept by tag, durably. STATE_DIR/STREAM/RUN/TAG.cursor holds the very bytes the
 * trainer holds.
 *
 * A snapshot is acknowledged when file and directory are on disk: it is written to a temporary
 * file, fsynced and renamed, and the directory is fsynced, while the run's directory is locked
 * (run_dir.h). A power cut leaves the old one or the new one. If a tag is saved again, the former
 * snapshot is kept as TAG.former, a tag like any other except that it cannot be saved. All of this
 * blocks: only the keeper's thread calls it.
 */
#ifndef TOKEND_SNAPSHOT_FILE_H
#define TOKEND_SNAPSHOT_FILE_H

#include "daemon/control/run_dir.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { SNAPSHOTS_MOST = 16384 }; /* snapshots of a run, root's not counted */

struct snapshot_saved {
	char path[PATH_MAX]; /* of the file */
	bool written;	     /* it was not there already */
	bool opened;	     /* the run's directory, which is clean now */
	bool replaced;	     /* there was another snapshot of this tag: it is the former one now */
	uid_t owner;	     /* of the run, as far as it is known */
};

/* Names must satisfy wire_name_ok(). False: what was there before stays, and fault->field is "run"
 * or "state_dir". @saved is filled either way. */
bool snapshot_file_save(const struct run_place *place, const char *tag, const void *bytes, size_t n,
	struct snapshot_saved *saved, struct fault *fault);

/*
 * Reads snapshot @tag: that of the run, otherwise that of the only run which has one of this tag;
 * "RUN/TAG" names the run. @bytes has LIMIT_CURSOR_BYTES of room. Returns the length, or 0. The
 * contents are not checked here. @former: the tag of the snapshot before, to be offered if this one
 * is damaged; "": there is none.
 */
enum { SNAPSHOT_TAG_BYTES = 2 * LIMIT_NAME_BYTES + 16 };
size_t snapshot_file_load(const struct run_place *place, const char *tag, void *bytes,
	char former[SNAPSHOT_TAG_BYTES], struct fault *fault);

#endif
