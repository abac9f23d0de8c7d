/*
 * The mix log: what `tokctl --run RUN` looks back with. STATE_DIR/STREAM/RUN/mixes/000001.cursor,
 * 000002.cursor, … are ordinary cursors. Each is one that a session of the run attached with when
 * its mix differed from that of the file before. The current segment of a file counts from its
 * start on, whatever earlier files said about the positions after it: that is a restart from an
 * older checkpoint.
 *
 * The keeper writes the log after the attach: an attach does not wait for state_dir.
 */
#ifndef TOKEND_MIX_LOG_H
#define TOKEND_MIX_LOG_H

#include "daemon/control/run_dir.h"
#include "proto/cursor.h"

/* A number over all of a cursor but its position: equal for equal mixes. */
uint64_t mix_checksum(const struct cursor *cursor);

/* What is known of the logs of some runs. Used by the keeper's thread only. */
struct mix_logs;

struct mix_logs *mix_logs_new(void); /* NULL: out of memory */
void mix_logs_free(struct mix_logs *logs);

struct mix_noted {
	uid_t owner; /* of the run, as far as it is known */
	bool added;  /* a file */
	bool opened; /* the run's directory, which is clean now */
};

/*
 * Adds the cursor in @bytes to the log of the run, unless the last file there has the same mix,
 * @checksum. Files are durable, appear whole and are never replaced, also if several daemons share
 * the directory. False: the failure is logged once a mix, and the next attach tries again. Blocks:
 * only the keeper calls it.
 */
bool mix_log_note(struct mix_logs *logs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n, struct mix_noted *noted);

#endif
