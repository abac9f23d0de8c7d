/* Lines are queued under a mutex that is never held during a write. */
#include "daemon/control/host.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	LINES = 1024,
	LINE_BYTES = 2032, /* without the prefix */
	WRITERS = 64,
	BURST = 256,
	FLUSH_MS = 1000,
};

struct line {
	enum log_level level;
	size_t n;
	char text[LINE_BYTES]; /* with a line end */
};

/* A user whose clients cause lines of this level. `left` is how many more may be written now; it
 * grows by one a second, up to BURST. */
struct writer {
	uid_t uid;
	enum log_level level; /* 0: unused */
	unsigned left;
	time_t since; /* when `left` was computed, in seconds of the monotonic clock */
	uint64_t suppressed;
};

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t news;
	bool running; /* the thread */
	struct line line[LINES];
	unsigned first, count; /* lines that wait; the first stays until it is written */
	uint64_t lost;	       /* lines dropped since that was last logged */
	struct writer writer[WRITERS];
	struct log_fault fault[LOG_FAULTS];
	unsigned faults; /* so far; the next one goes to faults % LOG_FAULTS */
	bool journal;	 /* stderr is systemd's journal */
} the_log = {
	.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, /* tell() logs */
	.news = PTHREAD_COND_INITIALIZER,
};

static time_t seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
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

/* In one call, so that lines of several processes do not mix. Errors are ignored: there is no place
 * to report them. */
static void write_line(const struct line *l)
{
	char head[16];
	int n = snprintf(head, sizeof(head), the_log.journal ? "<%d>" : "tokend: ", l->level);
	const struct iovec part[] = {{head, (size_t)n}, {(void *)l->text, l->n}};

	(void)!writev(STDERR_FILENO, part, 2);
}

/* ---- lines ---- */

static void format_line(struct line *l, enum log_level level, const char *format, va_list args)
{
	int n = vsnprintf(l->text, LINE_BYTES - 1, format, args);

	if (n > LINE_BYTES - 2)
		n = LINE_BYTES - 2;
	l->level = level;
	fault_line(l->text); /* it may contain a client's text */
	l->text[n++] = '\n';
	l->n = (size_t)n;
}

static void keep_fault(struct log_fault *f, const struct line *l)
{
	size_t n = l->n - 1 < sizeof(f->text) ? l->n - 1 : sizeof(f->text) - 1;

	*f = (struct log_fault){.at = time(NULL), .level = l->level};
	memcpy(f->text, l->text, n);
}

/* Under the mutex. */
static void add(enum log_level level, const char *format, va_list args)
{
	struct line *l = &the_log.line[(the_log.first + the_log.count) % LINES];

	if (the_log.count == LINES) {
		the_log.lost++;
		return;
	}
	format_line(l, level, format, args);
	if (level <= LOG_WARNING)
		keep_fault(&the_log.fault[the_log.faults++ % LOG_FAULTS], l);
	if (!the_log.running)
		write_line(l);
	the_log.count += the_log.running;
	pthread_cond_signal(&the_log.news);
}

/* ---- users ---- */

/* The user's, or the one that is unused for the longest time. */
static struct writer *find_writer(uid_t uid, enum log_level level)
{
	struct writer *oldest = the_log.writer;

	for (struct writer *w = the_log.writer; w < the_log.writer + WRITERS; w++) {
		if (w->uid == uid && w->level == level)
			return w;
		if (w->since < oldest->since)
			oldest = w;
	}
	return oldest;
}

/* Under the mutex. */
static bool may_write(uid_t uid, enum log_level level)
{
	struct writer *w = find_writer(uid, level);
	time_t now = seconds();

	if (w->uid != uid || w->level != level) {
		the_log.lost += w->suppressed;
		*w = (struct writer){.uid = uid, .level = level, .left = BURST, .since = now};
	}
	w->left = now - w->since < BURST - w->left ? w->left + (unsigned)(now - w->since) : BURST;
	w->since = now;
	if (w->left > 0)
		return w->left--, true;
	w->suppressed++;
	return false;
}

/* Logs how many lines were lost and suppressed. */
static void tell(void)
{
	uint64_t lost;

	pthread_mutex_lock(&the_log.mutex);
	lost = the_log.lost;
	the_log.lost = 0;
	if (lost > 0)
		log_line(LOG_WARNING,
			"%" PRIu64
			" log lines were lost: too many at once, or the reader of stderr is slow",
			lost);
	for (struct writer *w = the_log.writer; w < the_log.writer + WRITERS; w++) {
		char who[48] = "users who may not connect";

		if (w->uid != (uid_t)LOG_STRANGERS)
			snprintf(who, sizeof(who), "uid %u", (unsigned)w->uid);
		if (w->suppressed > 0)
			log_line(w->level, "%" PRIu64 " more lines about %s were suppressed",
				w->suppressed, who);
		w->suppressed = 0;
	}
	pthread_mutex_unlock(&the_log.mutex);
}

/* ---- the thread ---- */

/* Writes what waits, or waits a second for it. */
static void write_lines(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&the_log.mutex);
	if (the_log.count == 0)
		pthread_cond_clockwait(&the_log.news, &the_log.mutex, CLOCK_MONOTONIC, &until);
	/* A waiting line does not change, so it is written in place. */
	for (; the_log.count > 0; the_log.count--, the_log.first = (the_log.first + 1) % LINES) {
		pthread_mutex_unlock(&the_log.mutex);
		write_line(&the_log.line[the_log.first]);
		pthread_mutex_lock(&the_log.mutex);
	}
	the_log.first = 0; /* so few lines stay in use */
	pthread_mutex_unlock(&the_log.mutex);
}

static void *writer(void *none)
{
	for (time_t told = seconds();;) {
		write_lines();
		if (seconds() != told)
			tell();
		told = seconds();
	}
	return none;
}

void log_start(void)
{
	the_log.journal = is_journal();
	the_log.running = thread_start(NULL, writer, NULL) == 0;
}

void log_flush(void)
{
	unsigned count = 1;

	for (int ms = 0; count > 0 && ms < FLUSH_MS; ms++) {
		pthread_mutex_lock(&the_log.mutex);
		count = the_log.count;
		pthread_mutex_unlock(&the_log.mutex);
		usleep(count > 0 ? 1000 : 0);
	}
}

/* ---- for everybody ---- */

void log_write(bool client, uid_t uid, enum log_level level, const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&the_log.mutex);
	va_start(args, format);
	if (!client || may_write(uid, level))
		add(level, format, args);
	va_end(args);
	pthread_mutex_unlock(&the_log.mutex);
}

unsigned log_faults(struct log_fault fault[LOG_FAULTS])
{
	unsigned n = 0;

	pthread_mutex_lock(&the_log.mutex);
	while (n < LOG_FAULTS && n < the_log.faults) {
		fault[n] = the_log.fault[(the_log.faults - 1 - n) % LOG_FAULTS];
		n++;
	}
	pthread_mutex_unlock(&the_log.mutex);
	return n;
}
