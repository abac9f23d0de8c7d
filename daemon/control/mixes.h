/*
 * The log of mixes: what `tokctl --run RUN` looks back with. STATE_DIR/STREAM/RUN/mixes/000001.cursor,
 * 000002.cursor, … are ordinary cursors, each what some session of the run attached with when its mix was not
 * that of the file before it. So the current segment of a file counts from its start on, whatever earlier
 * files said of what comes there: that is a restart from an older checkpoint.
 */
#ifndef TOKEND_MIXES_H
#define TOKEND_MIXES_H

#include "../../proto/cursor.h"

/*
 * Adds @cursor, @n @bytes long, to the log of @run, unless the last file there has the same mix: all but the
 * position is compared. Files are durable, appear whole and are never replaced, also where several daemons
 * share the directory. What fails is logged once a mix, and tried again at the next attach: the run goes on.
 * Blocks: call it off the loop. Any thread.
 */
void mixes_note(
	const char *state_dir, const char *run, const struct cursor *cursor, const void *bytes, size_t n);

#endif
