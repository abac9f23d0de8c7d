/* Finds the mix log of a run: STATE_DIR/STREAM/RUN/mixes/, in each place of state. */
#ifndef TOKEND_CTL_RUN_LOG_H
#define TOKEND_CTL_RUN_LOG_H

#include "client/ctl/offline/stream.h"

#include <dirent.h>

/* The files of a mix log, oldest first. */
struct run_log {
	char run[LIMIT_NAME_BYTES + 1]; /* its whole name */
	char *directory;
	struct dirent **entry; /* [n] */
	int n;
};

/* @run: the run's name, or a beginning that no other run of the stream has. False after an error:
 * it names each directory that was tried. */
bool run_log_find(struct run_log *log, const struct ctl_stream *s, const char *run);
/* True if a run of @stream has this name, or if @whole is false, a name that begins with it. Prints
 * nothing. */
bool run_log_exists(const struct config *config, const char *stream, const char *run, bool whole);
void run_log_free(struct run_log *log);

#endif
