/*
 * The log: lines on stderr, for a terminal or journald. Levels are sd-daemon's prefixes, written
 * only under systemd. Any thread may log. No call waits for the reader of stderr: a thread of the
 * log's own writes, and if 256 lines wait, further ones are counted instead, and the count is
 * logged later.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/*
 * The same, for what a client of user @uid can provoke as often as it likes. One cause is one
 * @format and one user: 20 lines at once, then one a second. Suppressed lines are counted, and the
 * count is logged.
 */
__attribute__((format(printf, 3, 4))) void log_client(
	uid_t uid, enum log_level level, const char *format, ...);

/* Waits until everything is written, but at most a second. exit() does this too; _exit() does not.
 */
void log_flush(void);

/* The reason of a failure, for the caller to log or to send. Always false. */
__attribute__((format(printf, 3, 4))) bool log_why(
	char *why, size_t why_bytes, const char *format, ...);

#endif
