/*
 * The log of mixes: what `tokctl --run RUN` looks back with.
 * STATE_DIR/STREAM/RUN/mixes/000001.cursor, 000002.cursor, … are ordinary cursors, each what some
 * session of the run attached with when its mix was not that of the file before it. So the current
 * segment of a file counts from its start on, whatever earlier files said of what comes there: that
 * is a restart from an older checkpoint.
 *
 * The log is written after the attach, by the keeper: an attach does not wait for state_dir.
 */
#ifndef TOKEND_MIX_LOG_H
#define TOKEND_MIX_LOG_H

#include "daemon/control/run_dir.h"
#include "proto/cursor.h"

/* A number over all but the position. */
uint64_t mix_log_checksum(const struct cursor *cursor);

struct mix_log_noted {
	uid_t owner;  /* of the run, as far as it is known */
	bool foreign; /* not noted: the run is that owner's */
	bool added;   /* a file */
	bool opened;  /* the run's directory, which is clean now */
};

/*
 * Adds the cursor in @bytes to the log of the run, unless the last file there has the same mix,
 * @checksum. Files are durable, appear whole and are never replaced, also if several daemons share
 * the directory. False: what failed is logged once a mix, and tried again after the next attach.
 * Blocks: only the keeper calls it.
 */
bool mix_log_note(const struct run_place *place, uint64_t checksum, const void *bytes, size_t n,
	struct mix_log_noted *noted);

#endif
