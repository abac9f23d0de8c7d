/* Lines are queued under a mutex that is never held during a write. */
#include "daemon/control/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	LINES = 256,
	LINE_BYTES = 2048,
	CAUSES = 64,
	BURST = 20, /* lines of one cause at once; then one a second */
	FLUSH_S = 1,
};

struct line {
	size_t n;
	char text[LINE_BYTES];
};

/* Lines of one format for one user. `credit` is how many more may be written now; it grows by one a
 * second, up to BURST. */
struct cause {
	const char *format; /* its address is its identity; NULL: unused */
	uid_t uid;
	enum log_level level;
	unsigned credit;
	time_t since; /* when credit was computed, in seconds of the monotonic clock */
	uint64_t suppressed;
};

struct log {
	pthread_mutex_t mutex;
	pthread_cond_t news, drained; /* on the monotonic clock */
	struct line line[LINES];
	unsigned first, count; /* lines that wait; the first stays until it is written */
	uint64_t lost;	       /* lines dropped since that was last logged */
	struct cause cause[CAUSES];
	struct log_fault fault[LOG_FAULTS];
	unsigned faults; /* so far; the next one goes to faults % LOG_FAULTS */
};

/* main()'s: see log.h. */
static struct log *the_log;

static struct timespec clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now;
}

/* ---- lines ---- */

static void write_line(const struct line *l)
{
	size_t done = 0;

	/* One write() per line if the kernel takes it whole, so that lines of several processes do
	 * not mix. Errors are ignored: there is no place to report them. */
	while (done < l->n) {
		ssize_t n = write(STDERR_FILENO, l->text + done, l->n - done);

		if (n < 0 && errno != EINTR)
			return;
		done += n > 0 ? (size_t)n : 0;
	}
}

/* True if stderr is the journal's socket. Programs that a service starts inherit the variable, but
 * their stderr may be something else. */
static bool is_journal(void)
{
	const char *named = getenv("JOURNAL_STREAM"); /* "DEVICE:INODE" */
	char own[64];
	struct stat st;

	if (!named || fstat(STDERR_FILENO, &st) != 0)
		return false;
	snprintf(own, sizeof(own), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	return strcmp(own, named) == 0;
}

/* It may contain a client's text, which must not end the line. */
static void drop_controls(char *text, int n)
{
	for (int i = 0; i < n; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = '?';
}

static void format_line(struct line *l, enum log_level level, const char *format, va_list args)
{
	int n = is_journal() ? snprintf(l->text, LINE_BYTES, "<%d>", level)
			     : snprintf(l->text, LINE_BYTES, "tokend: ");

	n += vsnprintf(l->text + n, LINE_BYTES - (size_t)n - 1, format, args);
	if (n > LINE_BYTES - 2)
		n = LINE_BYTES - 2;
	drop_controls(l->text, n);
	l->text[n++] = '\n';
	l->n = (size_t)n;
}

/* Under the mutex. */
static void keep_fault(struct log *log, enum log_level level, const char *format, va_list args)
{
	struct log_fault *f = &log->fault[log->faults++ % LOG_FAULTS];

	f->at = time(NULL);
	f->level = level;
	vsnprintf(f->text, sizeof(f->text), format, args);
	drop_controls(f->text, (int)strlen(f->text));
}

/* Under the mutex. */
static void queue_arguments(struct log *log, enum log_level level, const char *format, va_list args)
{
	va_list again;

	if (level <= LOG_WARNING) {
		va_copy(again, args);
		keep_fault(log, level, format, again);
		va_end(again);
	}
	if (log->count == LINES) {
		log->lost++;
		return;
	}
	format_line(&log->line[(log->first + log->count++) % LINES], level, format, args);
	pthread_cond_signal(&log->news);
}

__attribute__((format(printf, 3, 4))) static void queue(
	struct log *log, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	queue_arguments(log, level, format, args);
	va_end(args);
}

/* ---- causes ---- */

/* Under the mutex. */
static void queue_suppressed(struct log *log, struct cause *c)
{
	if (c->suppressed > 0)
		queue(log, c->level, "%llu more lines like \"%.60s\" by uid %u were suppressed",
			(unsigned long long)c->suppressed, c->format, (unsigned)c->uid);
	c->suppressed = 0;
}

static struct cause *find_cause(struct log *log, uid_t uid, const char *format, time_t now)
{
	struct cause *oldest = &log->cause[0];

	for (unsigned i = 0; i < CAUSES; i++) {
		struct cause *c = &log->cause[i];

		if (c->format == format && c->uid == uid)
			return c;
		if (c->since < oldest->since)
			oldest = c;
	}
	queue_suppressed(log, oldest);
	*oldest = (struct cause){.format = format, .uid = uid, .credit = BURST, .since = now};
	return oldest;
}

static bool may_write(struct log *log, uid_t uid, enum log_level level, const char *format)
{
	time_t now = clock_now().tv_sec;
	struct cause *c = find_cause(log, uid, format, now);
	uint64_t credit = c->credit + (uint64_t)(now - c->since);

	c->level = level;
	c->credit = credit < BURST ? (unsigned)credit : BURST;
	c->since = now;
	if (c->credit == 0) {
		c->suppressed++;
		return false;
	}
	c->credit--;
	queue_suppressed(log, c);
	return true;
}

/* ---- the writer ---- */

/* Under the mutex, when no line waits: queues the numbers of lost and suppressed lines. True: there
 * were some. */
static bool queue_counts(struct log *log)
{
	uint64_t n = log->lost;
	time_t now = clock_now().tv_sec;

	log->lost = 0;
	if (n > 0)
		queue(log, LOG_WARNING,
			"%llu log lines were lost: the reader of stderr is too slow",
			(unsigned long long)n);
	for (unsigned i = 0; i < CAUSES; i++)
		if (log->cause[i].suppressed > 0 && now > log->cause[i].since)
			queue_suppressed(log, &log->cause[i]);
	return log->count > 0;
}

static void *writer(void *argument)
{
	struct log *log = argument;

	pthread_mutex_lock(&log->mutex);
	for (;;) {
		while (log->count == 0 && !queue_counts(log)) {
			struct timespec until = clock_now();

			until.tv_sec++;
			pthread_cond_broadcast(&log->drained);
			pthread_cond_timedwait(&log->news, &log->mutex, &until);
		}
		/* A waiting line does not change, so it is written in place. */
		pthread_mutex_unlock(&log->mutex);
		write_line(&log->line[log->first]);
		pthread_mutex_lock(&log->mutex);
		log->first = (log->first + 1) % LINES;
		log->count--;
	}
	return NULL;
}

bool log_start(void)
{
	struct log *log = calloc(1, sizeof(*log));
	pthread_condattr_t monotonic;
	sigset_t all, before;
	pthread_t thread;

	if (!log)
		return false;
	pthread_mutex_init(&log->mutex, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&log->news, &monotonic);
	pthread_cond_init(&log->drained, &monotonic);
	pthread_condattr_destroy(&monotonic);
	/* Signals are handled by other threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);

	bool running = pthread_create(&thread, NULL, writer, log) == 0;

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!running) {
		free(log);
		return false;
	}
	pthread_detach(thread);
	the_log = log;
	return true;
}

void log_flush(void)
{
	struct log *log = the_log;
	struct timespec until = clock_now();
	int error = 0;

	if (!log)
		return;
	until.tv_sec += FLUSH_S;
	pthread_mutex_lock(&log->mutex);
	while (log->count > 0 && error == 0)
		error = pthread_cond_timedwait(&log->drained, &log->mutex, &until);
	pthread_mutex_unlock(&log->mutex);
}

static void write_now(enum log_level level, const char *format, va_list args)
{
	struct line line;

	format_line(&line, level, format, args);
	write_line(&line);
}

void log_line(enum log_level level, const char *format, ...)
{
	struct log *log = the_log;
	va_list args;

	va_start(args, format);
	if (log) {
		pthread_mutex_lock(&log->mutex);
		queue_arguments(log, level, format, args);
		pthread_mutex_unlock(&log->mutex);
	} else {
		write_now(level, format, args);
	}
	va_end(args);
}

void log_client(uid_t uid, enum log_level level, const char *format, ...)
{
	struct log *log = the_log;
	va_list args;

	va_start(args, format);
	if (log) {
		pthread_mutex_lock(&log->mutex);
		if (may_write(log, uid, level, format))
			queue_arguments(log, level, format, args);
		pthread_mutex_unlock(&log->mutex);
	} else {
		write_now(level, format, args);
	}
	va_end(args);
}

unsigned log_faults(struct log_fault fault[LOG_FAULTS])
{
	struct log *log = the_log;
	unsigned n = 0;

	if (!log)
		return 0;
	pthread_mutex_lock(&log->mutex);
	while (n < LOG_FAULTS && n < log->faults) {
		fault[n] = log->fault[(log->faults - 1 - n) % LOG_FAULTS];
		n++;
	}
	pthread_mutex_unlock(&log->mutex);
	return n;
}
