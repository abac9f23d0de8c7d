/* The line in the log at the start, and systemd's status line. */
#ifndef TOKEND_ANNOUNCE_H
#define TOKEND_ANNOUNCE_H

#include <stdbool.h>

struct control;

/* Logs that the daemon is ready at @path: with its version, config and streams. */
void announce_ready(const struct control *control, const char *path);
/* Sends systemd the status line if it has changed. Call once a second. @reloaded: sends READY=1,
 * too. */
void announce_state(struct control *control, bool reloaded);

#endif
