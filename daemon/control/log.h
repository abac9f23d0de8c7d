/*
 * The log: lines on stderr. If stderr is systemd's journal, each line is sent to the journal's own
 * socket, with its level and its fields. If that fails, it is written to stderr with sd-daemon's
 * prefix for the level. Any thread may log, and none waits for the reader of stderr: the log's own
 * thread writes. If 256 lines wait, further lines are dropped, and their number is logged later.
 *
 * main() starts the log. It is the only process-wide object in the daemon (a pointer in log.c), as
 * stderr is one: otherwise nearly every function would need it as a parameter. Before the start,
 * lines are written at once by the calling thread.
 */
#ifndef TOKEND_LOG_H
#define TOKEND_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* The subject of a line, for the journal's fields STREAM, RUN, RANK and SHARD. */
struct log_subject {
	const char *stream, *run, *shard; /* or NULL */
	uint64_t rank;			  /* of the run, if that is given */
};

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

/* Starts the log for the rest of the process. Call it before other threads exist. False: out of
 * memory, or no thread. */
bool log_start(void);
/* Waits up to a second until all lines are written. False: they are not. Call it before the process
 * ends. */
bool log_flush(void);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/*
 * The same, for lines that a client of user @uid can cause as often as it likes. Limited for each
 * @format (by address) and user: 20 lines at once, then one a second. The number of suppressed
 * lines is logged. LOG_STRANGERS: all users who may not connect.
 */
enum { LOG_STRANGERS = -1 };

__attribute__((format(printf, 3, 4))) void log_client(
	uid_t uid, enum log_level level, const char *format, ...);

/* The same about @subject. log_about() is not limited; log_session() to 256 lines at once. */
__attribute__((format(printf, 3, 4))) void log_about(
	const struct log_subject *subject, enum log_level level, const char *format, ...);
__attribute__((format(printf, 4, 5))) void log_session(uid_t uid, const struct log_subject *subject,
	enum log_level level, const char *format, ...);

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
