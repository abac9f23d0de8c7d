/*
 * The log: lines on stderr, for a terminal or journald. Levels are sd-daemon's prefixes, written only under
 * systemd.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#endif
