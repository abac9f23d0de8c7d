/* The cursor that tokend keeps of a run: STATE_DIR/STREAM/RUN/.run.cursor, in each place of state.
 */
#ifndef TOKEND_CTL_RUN_CURSOR_H
#define TOKEND_CTL_RUN_CURSOR_H

#include "client/ctl/offline/stream.h"
#include "proto/cursor.h"

/* @run: the run's name, or a beginning that no other run of the stream has. @whole: its whole
 * name. False after an error: it names each directory that was tried. */
bool run_cursor_read(struct cursor *cursor, const struct ctl_stream *s, const char *run,
	char whole[LIMIT_NAME_BYTES + 1]);
/* True if a run of @stream has this name, or if @whole is false, a name that begins with it. Prints
 * nothing. */
bool run_cursor_exists(
	const struct config *config, const char *stream, const char *run, bool whole);

#endif
