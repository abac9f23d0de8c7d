/* The cursor that tokend keeps of a run: STATE_DIR/STREAM/RUN/.run.cursor, in each place of state.
 */
#ifndef TOKEND_CTL_RUN_CURSOR_H
#define TOKEND_CTL_RUN_CURSOR_H

#include "client/ctl/offline/stream.h"
#include "proto/cursor.h"

/* @run: the run's name, or a file with its cursor. False after an error: it names each directory
 * that was tried. */
bool run_cursor_read(struct cursor *cursor, const struct ctl_stream *s, const char *run);

#endif
