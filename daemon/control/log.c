/* Lines are queued under a mutex that is never held during a write. */
#include "daemon/control/host.h"

#include "proto/fault.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	LINES = 1024,
	LINE_BYTES = 2032, /* without the prefix */
	FIELDS_BYTES = 512,
	CAUSES = 64,
};

struct line {
	enum log_level level;
	size_t n, fields_n;
	char text[LINE_BYTES];	   /* with a line end */
	char fields[FIELDS_BYTES]; /* in the journal's format: NAME=value, one a line */
};

/* Lines of one format for one user. `left` is how many more may be written now; it grows by one a
 * second, up to the burst. */
struct cause {
	const char *format; /* its address is its identity; NULL: unused */
	uid_t uid;
	enum log_level level;
	unsigned left;
	time_t since; /* when `left` was computed, in seconds of the monotonic clock */
	uint64_t suppressed;
};

static struct log {
	pthread_mutex_t mutex;
	pthread_cond_t news, written; /* on the monotonic clock */
	bool running;		      /* the thread */
	struct line line[LINES], dropped;
	unsigned first, count; /* lines that wait; the first stays until it is written */
	uint64_t lost;	       /* lines dropped since that was last logged */
	time_t told;	       /* when numbers of lines were last logged */
	struct cause cause[CAUSES];
	struct log_fault fault[LOG_FAULTS];
	unsigned faults; /* so far; the next one goes to faults % LOG_FAULTS */
	bool in_journal; /* stderr is the journal's */
	int journal;	 /* a socket, if it is */
} the_log = {.mutex = PTHREAD_MUTEX_INITIALIZER, .journal = -1};

static struct timespec clock_in(time_t seconds)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	now.tv_sec += seconds;
	return now;
}

/* ---- writing ---- */

/* Programs that a service starts inherit the variable, but their stderr may be something else. */
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

/* Lines and fields contain no control characters, so the journal's simple format is enough. */
static bool send_line(int journal, const struct line *l)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
	char head[64];
	int n = snprintf(
		head, sizeof(head), "PRIORITY=%d\nSYSLOG_IDENTIFIER=tokend\nMESSAGE=", l->level);
	struct iovec part[] = {
		{head, (size_t)n}, {(void *)l->text, l->n}, {(void *)l->fields, l->fields_n}};
	const struct msghdr message = {
		.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = part, .msg_iovlen = 3};

	return sendmsg(journal, &message, MSG_NOSIGNAL) >= 0;
}

/* In one call, so that lines of several processes do not mix. Errors are ignored: there is no place
 * to report them. */
static void write_line(const struct log *log, const struct line *l)
{
	char head[16];
	int n = snprintf(head, sizeof(head), log->in_journal ? "<%d>" : "tokend: ", l->level);
	const struct iovec part[] = {{head, (size_t)n}, {(void *)l->text, l->n}};

	if (log->journal < 0 || !send_line(log->journal, l))
		(void)!writev(STDERR_FILENO, part, 2);
}

/* ---- lines ---- */

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
	snprintf(rank, sizeof(rank), "%" PRIu64, subject->rank);
	add_field(l, "STREAM", subject->stream);
	add_field(l, "RUN", subject->run);
	add_field(l, "RANK", subject->run ? rank : NULL);
	add_field(l, "SHARD", subject->shard);
}

/* Under the mutex, as all that follow. */
static void keep_fault(struct log *log, const struct line *l)
{
	struct log_fault *f = &log->fault[log->faults++ % LOG_FAULTS];

	f->at = time(NULL);
	f->level = l->level;
	snprintf(f->text, sizeof(f->text), "%.*s", (int)l->n - 1, l->text);
}

static void add(struct log *log, const struct log_subject *subject, enum log_level level,
	const char *format, va_list args)
{
	bool full = log->count == LINES;
	struct line *l = full ? &log->dropped : &log->line[(log->first + log->count) % LINES];

	format_line(l, level, subject, format, args);
	if (level <= LOG_WARNING)
		keep_fault(log, l);
	if (!log->running) {
		write_line(log, l);
		return;
	}
	log->lost += full;
	log->count += !full;
	pthread_cond_signal(&log->news);
}

/* ---- causes ---- */

/* The cause of these lines, or the one that is unused for the longest time. */
static struct cause *find_cause(struct log *log, uid_t uid, const char *format)
{
	struct cause *oldest = &log->cause[0];

	for (unsigned i = 0; i < CAUSES; i++) {
		struct cause *c = &log->cause[i];

		if (c->format == format && c->uid == uid)
			return c;
		if (c->since < oldest->since)
			oldest = c;
	}
	return oldest;
}

static bool may_write(
	struct log *log, uid_t uid, unsigned burst, enum log_level level, const char *format)
{
	time_t now = clock_in(0).tv_sec;
	struct cause *c = find_cause(log, uid, format);

	if (c->format != format || c->uid != uid) {
		log->lost += c->suppressed;
		*c = (struct cause){format, uid, level, burst, now, 0};
	}
	c->left = now - c->since < burst - c->left ? c->left + (unsigned)(now - c->since) : burst;
	c->since = now;
	if (c->left > 0)
		return c->left--, true;
	c->suppressed++;
	return false;
}

__attribute__((format(printf, 3, 4))) static void note(
	struct log *log, enum log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	add(log, NULL, level, format, args);
	va_end(args);
}

/* Once a second: logs how many lines were lost and suppressed. */
static void tell(struct log *log)
{
	time_t now = clock_in(0).tv_sec;

	if (now == log->told || log->count == LINES)
		return;
	log->told = now;
	if (log->lost > 0)
		note(log, LOG_WARNING,
			"%" PRIu64
			" log lines were lost: too many at once, or the reader of stderr is slow",
			log->lost);
	log->lost = 0;
	for (struct cause *c = log->cause; c < log->cause + CAUSES; c++) {
		char who[48] = "users who may not connect";

		if (c->suppressed == 0)
			continue;
		if (c->uid != (uid_t)LOG_STRANGERS)
			snprintf(who, sizeof(who), "uid %u", (unsigned)c->uid);
		note(log, c->level, "%" PRIu64 " more lines like \"%.60s\" by %s were suppressed",
			c->suppressed, c->format, who);
		c->suppressed = 0;
	}
}

/* ---- the thread ---- */

static void *writer(void *argument)
{
	struct log *log = argument;

	pthread_mutex_lock(&log->mutex);
	for (;;) {
		const struct timespec until = clock_in(1);

		tell(log);
		/* A waiting line does not change, so it is written in place. */
		for (; log->count > 0; log->count--, log->first = (log->first + 1) % LINES) {
			pthread_mutex_unlock(&log->mutex);
			write_line(log, &log->line[log->first]);
			pthread_mutex_lock(&log->mutex);
		}
		log->first = 0; /* so few lines stay in use */
		pthread_cond_broadcast(&log->written);
		pthread_cond_timedwait(&log->news, &log->mutex, &until);
	}
	return NULL;
}

void log_start(void)
{
	struct log *log = &the_log;
	pthread_condattr_t monotonic;
	sigset_t all, before;
	pthread_t thread;

	log->in_journal = is_journal();
	if (log->in_journal)
		log->journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&log->news, &monotonic);
	pthread_cond_init(&log->written, &monotonic);
	pthread_condattr_destroy(&monotonic);
	/* Signals are handled by other threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	log->running = pthread_create(&thread, NULL, writer, log) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (log->running)
		pthread_detach(thread);
}

void log_flush(void)
{
	struct log *log = &the_log;
	const struct timespec until = clock_in(1);
	int error = 0;

	pthread_mutex_lock(&log->mutex);
	while (log->count > 0 && error == 0)
		error = pthread_cond_timedwait(&log->written, &log->mutex, &until);
	pthread_mutex_unlock(&log->mutex);
}

/* ---- for everybody ---- */

void log_write(uid_t uid, unsigned burst, const struct log_subject *subject, enum log_level level,
	const char *format, ...)
{
	struct log *log = &the_log;
	va_list args;

	pthread_mutex_lock(&log->mutex);
	va_start(args, format);
	if (burst == 0 || may_write(log, uid, burst, level, format))
		add(log, subject, level, format, args);
	va_end(args);
	pthread_mutex_unlock(&log->mutex);
}

unsigned log_faults(struct log_fault fault[LOG_FAULTS])
{
	struct log *log = &the_log;
	unsigned n = 0;

	pthread_mutex_lock(&log->mutex);
	while (n < LOG_FAULTS && n < log->faults) {
		fault[n] = log->fault[(log->faults - 1 - n) % LOG_FAULTS];
		n++;
	}
	pthread_mutex_unlock(&log->mutex);
	return n;
}
