/* Lines are queued under a mutex that is never held during a write. */
#include "daemon/control/log.h"

#include "proto/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
	LINES = 256,
	LINE_BYTES = 2032, /* without the prefix */
	FIELDS_BYTES = 512,
	CAUSES = 64,
	BURST = 20, /* lines of one cause at once; then one a second */
	BURST_SESSIONS = 256,
	FLUSH_S = 1,
};

struct line {
	enum log_level level;
	size_t n, fields_n;
	char text[LINE_BYTES];	   /* with a line end */
	char fields[FIELDS_BYTES]; /* in the journal's format: NAME=value, one a line */
};

/* Lines of one format for one user. `credit` is how many more may be written now; it grows by one a
 * second, up to `burst`. */
struct cause {
	const char *format; /* its address is its identity; NULL: unused */
	uid_t uid;
	enum log_level level;
	unsigned credit, burst;
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
	int journal;	 /* socket to it; -1: stderr is something else */
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

static void write_text(const char *text, size_t n)
{
	size_t done = 0;

	/* One write() per line if the kernel takes it whole, so that lines of several processes do
	 * not mix. Errors are ignored: there is no place to report them. */
	while (done < n) {
		ssize_t wrote = write(STDERR_FILENO, text + done, n - done);

		if (wrote < 0 && errno != EINTR)
			return;
		done += wrote > 0 ? (size_t)wrote : 0;
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

static int journal_open(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
	int fd = is_journal() ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;

	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Lines and fields contain no control characters, so the journal's simple format is enough. */
static bool send_line(int journal, const struct line *l)
{
	char head[64];
	int n = snprintf(
		head, sizeof(head), "PRIORITY=%d\nSYSLOG_IDENTIFIER=tokend\nMESSAGE=", l->level);
	struct iovec part[] = {
		{head, (size_t)n}, {(void *)l->text, l->n}, {(void *)l->fields, l->fields_n}};
	const struct msghdr message = {.msg_iov = part, .msg_iovlen = 3};
	ssize_t sent;

	do
		sent = sendmsg(journal, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent >= 0;
}

static void write_line(int journal, const struct line *l)
{
	char whole[LINE_BYTES + 16];
	int n;

	if (journal >= 0 && send_line(journal, l))
		return;
	if (is_journal())
		n = snprintf(whole, sizeof(whole), "<%d>%.*s", l->level, (int)l->n, l->text);
	else
		n = snprintf(whole, sizeof(whole), "tokend: %.*s", (int)l->n, l->text);
	write_text(whole, (size_t)n);
}

/* Adds a field, unless its value is too long. */
static void add_field(struct line *l, const char *name, const char *value)
{
	size_t room = sizeof(l->fields) - l->fields_n;
	char *at = l->fields + l->fields_n;
	int n = value ? snprintf(at, room, "%s=%s", name, value) : 0;

	if (n <= 0 || (size_t)n + 1 >= room)
		return;
	fault_line(at);
	at[n] = '\n';
	l->fields_n += (size_t)n + 1;
}

static void format_line(struct line *l, enum log_level level, const struct log_subject *subject,
	const char *format, va_list args)
{
	int n = vsnprintf(l->text, LINE_BYTES - 1, format, args);
	char rank[24];

	if (n > LINE_BYTES - 2)
		n = LINE_BYTES - 2;
	l->level = level;
	fault_line(l->text); /* it may contain a client's text */
	l->text[n++] = '\n';
	l->n = (size_t)n;
	l->fields_n = 0;
	if (!subject)
		return;
	snprintf(rank, sizeof(rank), "%ju", (uintmax_t)subject->rank);
	add_field(l, "STREAM", subject->stream);
	add_field(l, "RUN", subject->run);
	add_field(l, "RANK", subject->run ? rank : NULL);
	add_field(l, "SHARD", subject->shard);
}

/* Under the mutex. */
static void keep_fault(struct log *log, enum log_level level, const char *format, va_list args)
{
	struct log_fault *f = &log->fault[log->faults++ % LOG_FAULTS];

	f->at = time(NULL);
	f->level = level;
	vsnprintf(f->text, sizeof(f->text), format, args);
	fault_line(f->text);
}

/* Under the mutex. */
static void queue_arguments(struct log *log, enum log_level level,
	const struct log_subject *subject, const char *format, va_list args)
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
	format_line(&log->line[(log->first + log->count++) % LINES], level, subject, format, args);
	pthread_cond_signal(&log->news);
}

__attribute__((format(printf, 3, 4))) static void queue(
	struct log *log, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	queue_arguments(log, level, NULL, format, args);
	va_end(args);
}

/* ---- causes ---- */

/* Under the mutex. */
static void queue_suppressed(struct log *log, struct cause *c)
{
	if (c->suppressed > 0 && c->uid == (uid_t)LOG_STRANGERS)
		queue(log, c->level,
			"%llu more lines like \"%.60s\" by users who may not connect were "
			"suppressed",
			(unsigned long long)c->suppressed, c->format);
	else if (c->suppressed > 0)
		queue(log, c->level, "%llu more lines like \"%.60s\" by uid %u were suppressed",
			(unsigned long long)c->suppressed, c->format, (unsigned)c->uid);
	c->suppressed = 0;
}

static struct cause *find_cause(
	struct log *log, uid_t uid, unsigned burst, const char *format, time_t now)
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
	*oldest = (struct cause){
		.format = format, .uid = uid, .credit = burst, .burst = burst, .since = now};
	return oldest;
}

static bool may_write(
	struct log *log, uid_t uid, unsigned burst, enum log_level level, const char *format)
{
	time_t now = clock_now().tv_sec;
	struct cause *c = find_cause(log, uid, burst, format, now);
	uint64_t credit = c->credit + (uint64_t)(now - c->since);

	c->level = level;
	c->credit = credit < c->burst ? (unsigned)credit : c->burst;
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
		write_line(log->journal, &log->line[log->first]);
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
	log->journal = journal_open();
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

bool log_flush(void)
{
	struct log *log = the_log;
	struct timespec until = clock_now();
	int error = 0;

	if (!log)
		return true;
	until.tv_sec += FLUSH_S;
	pthread_mutex_lock(&log->mutex);
	while (log->count > 0 && error == 0)
		error = pthread_cond_timedwait(&log->drained, &log->mutex, &until);
	pthread_mutex_unlock(&log->mutex);
	return error == 0;
}

static void write_now(enum log_level level, const char *format, va_list args)
{
	struct line line;

	format_line(&line, level, NULL, format, args);
	write_line(-1, &line);
}

/* @burst: lines of this user and format at once; 0: no limit. */
static void log_arguments(uid_t uid, unsigned burst, const struct log_subject *subject,
	enum log_level level, const char *format, va_list args)
{
	struct log *log = the_log;

	if (!log) {
		write_now(level, format, args);
		return;
	}
	pthread_mutex_lock(&log->mutex);
	if (burst == 0 || may_write(log, uid, burst, level, format))
		queue_arguments(log, level, subject, format, args);
	pthread_mutex_unlock(&log->mutex);
}

void log_line(enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_arguments(0, 0, NULL, level, format, args);
	va_end(args);
}

void log_about(const struct log_subject *subject, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_arguments(0, 0, subject, level, format, args);
	va_end(args);
}

void log_client(uid_t uid, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_arguments(uid, BURST, NULL, level, format, args);
	va_end(args);
}

void log_session(
	uid_t uid, const struct log_subject *subject, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_arguments(uid, BURST_SESSIONS, subject, level, format, args);
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
