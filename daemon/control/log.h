/*
 * The log: lines on stderr, for a terminal or journald. Levels are sd-daemon's prefixes, written
 * only under systemd. Any thread may log. No call waits for the reader of stderr: a thread of the
 * log's own writes, and if 256 lines wait, further ones are counted instead, and the count is
 * logged later.
 *
 * main() makes the log. It is the one thing in the daemon that is found by a process-wide pointer
 * (in log.c), as stderr is: the log also takes the last words of threads that know nothing but
 * their own job, and as a parameter it would be one of nearly every function. Without a log, lines
 * are written at once by whoever logs.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

/* Before there are other threads; for the rest of the process. False: no memory, or no thread, and
 * there is no log. */
bool log_start(void);
/* Waits until everything is written, but at most a second. Call it before the process ends. */
void log_flush(void);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/*
 * The same, for what a client of user @uid can provoke as often as it likes. One cause is one
 * @format and one user: 20 lines at once, then one a second. Suppressed lines are counted, and the
 * count is logged.
 */
__attribute__((format(printf, 3, 4))) void log_client(
	uid_t uid, enum log_level level, const char *format, ...);

#endif
