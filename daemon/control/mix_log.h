/*
 * The mix log: the mixes that a run has had, for `tokctl --run RUN`. Its files,
 * STATE_DIR/STREAM/RUN/mixes/000001.cursor, 000002.cursor, …, are ordinary cursors. A file is added
 * when a session attaches at a cursor whose mix differs from the last file's. From the start of its
 * current segment on, a file overrides all earlier files: the run may have restarted from an older
 * checkpoint.
 *
 * The keeper writes the log after the attach, so no attach waits for state_dir.
 */
#ifndef TOKEND_MIX_LOG_H
#define TOKEND_MIX_LOG_H

#include "daemon/control/run_dir.h"
#include "proto/cursor.h"

/* A checksum of all of a cursor except its position: equal for equal mixes. */
uint64_t mix_checksum(const struct cursor *cursor);

/* A cache of the last entries of some runs' logs. The keeper's thread uses it. */
struct mix_logs;

struct mix_logs *mix_logs_new(void); /* NULL: out of memory */
void mix_logs_free(struct mix_logs *logs);

struct mix_noted {
	uid_t owner; /* of the run, or RUN_NOBODY if that is unknown */
	bool added;  /* a file was added */
	bool opened; /* the run's directory was opened, and so contains no left-over files now */
};

/*
 * Adds the cursor in @bytes to the log of the run, unless the last file there has the same mix
 * (@checksum). Files are durable, appear whole and are never replaced, even if several daemons
 * share the directory. False: the failure is logged once per mix, and the next attach tries again.
 * Blocks: only the keeper's thread calls it.
 */
bool mix_log_note(struct mix_logs *logs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n, struct mix_noted *noted);

#endif
