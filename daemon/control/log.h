/*
 * The log: lines on stderr. If stderr is systemd's journal, each line is sent to the journal's own
 * socket, with its level and its fields. If that fails, it is written to stderr with sd-daemon's
 * prefix for the level. Any thread may log, and none waits for the reader of stderr: the log's own
 * thread writes. If 1024 lines wait, further lines are dropped, and their number is logged later.
 *
 * It is the only process-wide object in the daemon (static in log.c), as stderr is one: otherwise
 * nearly every function would need it as a parameter.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* The subject of a line, for the journal's fields STREAM, RUN, RANK and SHARD. */
struct log_subject {
	const char *stream, *run, *shard; /* or NULL */
	uint64_t rank;			  /* of the run, if that is given */
};

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

/* Starts the log's thread. Call it before other threads exist. Before that, or if it fails, lines
 * are written by the thread that logs. */
void log_start(void);
/* Waits up to a second until all lines are written. Call it before the process ends. */
void log_flush(void);

/*
 * @burst: 0, or how many lines of this @format (by address) user @uid may cause at once; then it is
 * one a second. The number of suppressed lines is logged. @subject: or NULL.
 */
__attribute__((format(printf, 5, 6))) void log_write(uid_t uid, unsigned burst,
	const struct log_subject *subject, enum log_level level, const char *format, ...);

#define log_line(...)		log_write(0, 0, NULL, __VA_ARGS__)
#define log_about(subject, ...) log_write(0, 0, subject, __VA_ARGS__)

/* The same, for lines that a client of user @uid can cause as often as it likes. LOG_STRANGERS: all
 * users who may not connect. */
enum { LOG_STRANGERS = -1, LOG_BURST = 20, LOG_BURST_SESSIONS = 256 };

#define log_client(uid, ...)	       log_write(uid, LOG_BURST, NULL, __VA_ARGS__)
#define log_session(uid, subject, ...) log_write(uid, LOG_BURST_SESSIONS, subject, __VA_ARGS__)

/* The last errors and warnings since the start, for people who look at a page. */
enum { LOG_FAULTS = 20, LOG_FAULT_BYTES = 400 };

struct log_fault {
	time_t at; /* Unix time; 0: none */
	enum log_level level;
	char text[LOG_FAULT_BYTES]; /* cut to this length */
};

/* Copies them, the newest first, and returns their number. */
unsigned log_faults(struct log_fault fault[LOG_FAULTS]);

#endif
