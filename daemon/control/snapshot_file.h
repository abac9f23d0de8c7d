/*
 * Snapshots: cursors stored under a tag, in STATE_DIR/STREAM/RUN/TAG.cursor. A file contains
 * exactly the bytes of the trainer's cursor.
 *
 * A save returns when file and directory are on disk: a temporary file is written, fsynced and
 * renamed, and the directory is fsynced, all with the run's directory locked (run_dir.h). After a
 * power cut the tag is the old snapshot or the new one. If a tag is saved again, the previous
 * snapshot is kept as TAG.former. That is a tag like any other, except that it cannot be saved.
 * These functions block: only the keeper's thread calls them.
 */
#ifndef TOKEND_SNAPSHOT_FILE_H
#define TOKEND_SNAPSHOT_FILE_H

#include "daemon/control/run_dir.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { SNAPSHOTS_MOST = 16384 }; /* per run; root may save more */

struct snapshot_saved {
	char path[PATH_MAX]; /* of the file */
	bool written;	     /* false: the same bytes were saved already */
	bool opened;	     /* the run's directory was opened: it has no left-over files now */
	bool replaced;	     /* the tag had another snapshot, which is TAG.former now */
	uid_t owner;	     /* of the run, or RUN_NOBODY if that is unknown */
};

/* Saves @bytes as @tag, a valid name (wire_name_ok()). False: the tag is unchanged, and
 * fault->field is "run" or "state_dir". @saved is filled either way. */
bool snapshot_file_save(const struct run_place *place, const char *tag, const void *bytes, size_t n,
	struct snapshot_saved *saved, struct fault *fault);

/*
 * Reads snapshot @tag of the run; if it has none, that of the only run that has one. "RUN/TAG"
 * names another run. @bytes: a buffer of LIMIT_CURSOR_BYTES. Returns the length, or 0. The contents
 * are not checked. @former: receives the tag of the previous snapshot, to be offered if this one is
 * damaged;
 * "": there is none.
 */
enum { SNAPSHOT_TAG_BYTES = 2 * LIMIT_NAME_BYTES + 16 };
size_t snapshot_file_load(const struct run_place *place, const char *tag, void *bytes,
	char former[SNAPSHOT_TAG_BYTES], struct fault *fault);

#endif
