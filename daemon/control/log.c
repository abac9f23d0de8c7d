/*
 * Lines are queued under a mutex that is never held during a write. The queue is the one piece of
 * global state in the daemon, as stderr is: there is one log, and it must also take the last words
 * of a thread that knows nothing but its own job.
 */
#include "daemon/control/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	LINES = 256,
	LINE_BYTES = 2048,
	CAUSES = 64,
	BURST = 20, /* lines of one cause at once; later one a second */
	FLUSH_S = 1,
};

struct line {
	size_t n;
	char text[LINE_BYTES];
};

/* What one user provoked: `credit` lines may still be written, and grows by one a second up to
 * BURST. */
struct cause {
	const char *format; /* its address is its identity; NULL: unused */
	uid_t uid;
	enum log_level level;
	unsigned credit;
	time_t since; /* of the credit, in seconds of the monotonic clock */
	uint64_t suppressed;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news, drained; /* on the monotonic clock */
static bool running;		     /* the writer; without it lines are written at once */
static struct line line[LINES];
static unsigned first, count; /* of the lines that wait; the first stays until it is written */
static uint64_t lost;	      /* lines for which there was no room */
static struct cause cause[CAUSES];

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

	/* One write a line where the kernel takes it whole, so that lines of several processes do
	 * not mix. A log that cannot be written has nobody to tell. */
	while (done < l->n) {
		ssize_t n = write(STDERR_FILENO, l->text + done, l->n - done);

		if (n < 0 && errno != EINTR)
			return;
		done += n > 0 ? (size_t)n : 0;
	}
}

static void format_line(struct line *l, enum log_level level, const char *format, va_list args)
{
	int n = getenv("JOURNAL_STREAM") ? snprintf(l->text, LINE_BYTES, "<%d>", level)
					 : snprintf(l->text, LINE_BYTES, "tokend: ");

	n += vsnprintf(l->text + n, LINE_BYTES - (size_t)n - 1, format, args);
	if (n > LINE_BYTES - 2)
		n = LINE_BYTES - 2;
	/* Much of it a client wrote: it gets no say in where a line ends. */
	for (int i = 0; i < n; i++)
		if ((unsigned char)l->text[i] < 0x20 || l->text[i] == 0x7f)
			l->text[i] = '?';
	l->text[n++] = '\n';
	l->n = (size_t)n;
}

/* Under the mutex. */
static void queue_arguments(enum log_level level, const char *format, va_list args)
{
	if (!running) {
		struct line now;

		format_line(&now, level, format, args);
		write_line(&now);
		return;
	}
	if (count == LINES) {
		lost++;
		return;
	}
	format_line(&line[(first + count++) % LINES], level, format, args);
	pthread_cond_signal(&news);
}

__attribute__((format(printf, 2, 3))) static void queue(
	enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	queue_arguments(level, format, args);
	va_end(args);
}

/* ---- causes ---- */

/* Under the mutex. */
static void tell_suppressed(struct cause *c)
{
	if (c->suppressed > 0)
		queue(c->level, "%llu more lines like \"%.60s\" by uid %u were suppressed",
			(unsigned long long)c->suppressed, c->format, (unsigned)c->uid);
	c->suppressed = 0;
}

static struct cause *find_cause(uid_t uid, const char *format, time_t now)
{
	struct cause *oldest = &cause[0];

	for (unsigned i = 0; i < CAUSES; i++) {
		if (cause[i].format == format && cause[i].uid == uid)
			return &cause[i];
		if (cause[i].since < oldest->since)
			oldest = &cause[i];
	}
	tell_suppressed(oldest);
	*oldest = (struct cause){.format = format, .uid = uid, .credit = BURST, .since = now};
	return oldest;
}

static bool may_write(uid_t uid, enum log_level level, const char *format)
{
	time_t now = clock_now().tv_sec;
	struct cause *c = find_cause(uid, format, now);
	uint64_t credit = c->credit + (uint64_t)(now - c->since);

	c->level = level;
	c->credit = credit < BURST ? (unsigned)credit : BURST;
	c->since = now;
	if (c->credit == 0) {
		c->suppressed++;
		return false;
	}
	c->credit--;
	tell_suppressed(c);
	return true;
}

/* ---- the writer ---- */

/* Under the mutex, when nothing waits: what was not written. True if that is something. */
static bool tell_rest(void)
{
	uint64_t n = lost;
	time_t now = clock_now().tv_sec;

	lost = 0;
	if (n > 0)
		queue(LOG_WARNING, "%llu lines of this log were lost: its reader is too slow",
			(unsigned long long)n);
	for (unsigned i = 0; i < CAUSES; i++)
		if (cause[i].suppressed > 0 && now > cause[i].since)
			tell_suppressed(&cause[i]);
	return count > 0;
}

static void *writer(void *none)
{
	(void)none;
	pthread_mutex_lock(&mutex);
	for (;;) {
		while (count == 0 && !tell_rest()) {
			struct timespec until = clock_now();

			until.tv_sec++;
			pthread_cond_broadcast(&drained);
			pthread_cond_timedwait(&news, &mutex, &until);
		}
		/* Nobody touches a line that waits, so it is written where it is. */
		pthread_mutex_unlock(&mutex);
		write_line(&line[first]);
		pthread_mutex_lock(&mutex);
		first = (first + 1) % LINES;
		count--;
	}
	return NULL;
}

static void start(void)
{
	pthread_condattr_t monotonic;
	sigset_t all, before;
	pthread_t thread;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&news, &monotonic);
	pthread_cond_init(&drained, &monotonic);
	pthread_condattr_destroy(&monotonic);
	/* Signals are for the threads that expect them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	running = pthread_create(&thread, NULL, writer, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (running) {
		pthread_detach(thread);
		atexit(log_flush);
	}
}

void log_flush(void)
{
	struct timespec until = clock_now();
	int error = 0;

	until.tv_sec += FLUSH_S;
	pthread_once(&once, start);
	pthread_mutex_lock(&mutex);
	while (running && count > 0 && error == 0)
		error = pthread_cond_timedwait(&drained, &mutex, &until);
	pthread_mutex_unlock(&mutex);
}

void log_line(enum log_level level, const char *format, ...)
{
	va_list args;

	pthread_once(&once, start);
	va_start(args, format);
	pthread_mutex_lock(&mutex);
	queue_arguments(level, format, args);
	pthread_mutex_unlock(&mutex);
	va_end(args);
}

void log_client(uid_t uid, enum log_level level, const char *format, ...)
{
	va_list args;

	pthread_once(&once, start);
	va_start(args, format);
	pthread_mutex_lock(&mutex);
	if (may_write(uid, level, format))
		queue_arguments(level, format, args);
	pthread_mutex_unlock(&mutex);
	va_end(args);
}

bool log_why(char *why, size_t why_bytes, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, why_bytes, format, args);
	va_end(args);
	return false;
}
