/*
 * The log: lines on stderr, for a terminal or journald. Levels are sd-daemon's prefixes, written only under
 * systemd.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/* The reason of a failure, for the caller to log or to send. Always false. */
__attribute__((format(printf, 3, 4))) bool log_why(char *why, size_t why_bytes, const char *format, ...);

#endif
