#include "mixes.h"

#include "log.h"
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { RUNS = 16, DIGITS = 6 };

/* The last file of a run's log as it was seen last: the ranks of a job attach one after the other. */
struct seen {
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	uint64_t number;    /* 0: not known */
	uint64_t checksum;  /* of its mix */
	uint64_t complaint; /* checksum of the mix that could not be written, so that it is said once */
};

struct log_of {
	char directory[PATH_MAX];
	int at; /* the directory, open */
	struct seen *seen;
	uint64_t checksum; /* of the mix to note */
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static struct seen all_seen[RUNS];
static unsigned next_seen;

/* A number over all but the position. */
static uint64_t checksum_of(const struct cursor *cursor)
{
	struct cursor begin = *cursor; /* shares everything; only encoded */
	char bytes[LIMIT_CURSOR_BYTES];

	begin.next = begin.segment[0]->start;
	return order_checksum(bytes, cursor_encode(&begin, bytes, sizeof(bytes)));
}

static struct seen *find_seen(const char *stream, const char *run)
{
	struct seen *seen;

	for (unsigned i = 0; i < RUNS; i++)
		if (strcmp(all_seen[i].stream, stream) == 0 && strcmp(all_seen[i].run, run) == 0)
			return &all_seen[i];
	seen = &all_seen[next_seen++ % RUNS];
	*seen = (struct seen){0};
	snprintf(seen->stream, sizeof(seen->stream), "%s", stream);
	snprintf(seen->run, sizeof(seen->run), "%s", run);
	return seen;
}

static void name_of(uint64_t number, char name[32])
{
	snprintf(name, 32, "%0*" PRIu64 ".cursor", DIGITS, number);
}

static bool exists(const struct log_of *log, uint64_t number)
{
	char path[PATH_MAX + 64], name[32];

	name_of(number, name);
	snprintf(path, sizeof(path), "%s/%s", log->directory, name);
	return access(path, F_OK) == 0;
}

/* The number in a file's name, 0 if it is none of the log's. */
static uint64_t number_of(const char *name)
{
	size_t digits = strspn(name, "0123456789");

	if (digits < DIGITS || digits > 19 || strcmp(name + digits, ".cursor") != 0)
		return 0;
	return strtoull(name, NULL, 10);
}

/* The highest number there, 0 for none. False with errno. */
static bool last_number(const struct log_of *log, uint64_t *last)
{
	DIR *dir = opendir(log->directory);
	struct dirent *e;

	*last = 0;
	if (!dir)
		return false;
	errno = 0;
	while ((e = readdir(dir))) {
		uint64_t number = number_of(e->d_name);

		if (number > *last)
			*last = number;
	}
	int error = errno;

	closedir(dir);
	errno = error;
	return error == 0;
}

/* Does file @number hold the mix to note? One that is damaged does not. */
static bool holds(const struct log_of *log, uint64_t number)
{
	struct cursor cursor = {0};
	struct cursor_why why;
	char bytes[LIMIT_CURSOR_BYTES], name[32];

	name_of(number, name);
	ssize_t n = store_read_file(log->at, name, bytes, sizeof(bytes));
	bool same = n > 0 && cursor_decode(&cursor, bytes, (size_t)n, &why) &&
		    checksum_of(&cursor) == log->checksum;

	cursor_free(&cursor);
	return same;
}

/* False with errno; EEXIST where another daemon took the number. */
static bool add(const struct log_of *log, uint64_t number, const void *bytes, size_t n)
{
	char beside[32], name[32];
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return false;
	snprintf(beside, sizeof(beside), ".%016" PRIx64 ".new", random);
	name_of(number, name);
	bool done =
		store_write_file(log->at, beside, bytes, n) && linkat(log->at, beside, log->at, name, 0) == 0;
	int error = errno;

	unlinkat(log->at, beside, 0);
	errno = error;
	return done && fsync(log->at) == 0;
}

/* In an open directory. False with errno. */
static bool note(struct log_of *log, const void *bytes, size_t n)
{
	uint64_t last;
	bool added = false;

	do {
		if (!last_number(log, &last))
			return false;
		if (last == 0 || !holds(log, last)) {
			last++;
			added = add(log, last, bytes, n);
			if (!added && errno != EEXIST)
				return false;
		} else {
			added = true; /* it was there */
		}
	} while (!added);
	log->seen->number = last;
	log->seen->checksum = log->checksum;
	log->seen->complaint = 0;
	return true;
}

/* False with errno. */
static bool open_and_note(struct log_of *log, const void *bytes, size_t n)
{
	const struct seen *seen = log->seen;

	if (seen->number > 0 && seen->checksum == log->checksum && exists(log, seen->number) &&
		!exists(log, seen->number + 1))
		return true;
	if (!store_make_directories(log->directory))
		return false;
	log->at = open(log->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (log->at < 0)
		return false;
	bool done = note(log, bytes, n);
	int error = errno;

	close(log->at);
	errno = error;
	return done;
}

static void complain(struct log_of *log, const char *why)
{
	if (log->seen->complaint == log->checksum)
		return;
	log->seen->complaint = log->checksum;
	log_line(LOG_WARNING,
		"the mix of stream %s, run %s, is not in the log: %s: %s; the run goes on, but `tokctl "
		"--run` will not know of it",
		log->seen->stream, log->seen->run, log->directory, why);
}

void mixes_note(
	const char *state_dir, const char *run, const struct cursor *cursor, const void *bytes, size_t n)
{
	struct log_of log = {.at = -1, .checksum = checksum_of(cursor)};
	int length = snprintf(
		log.directory, sizeof(log.directory), "%s/%s/%s/mixes", state_dir, cursor->stream, run);

	pthread_mutex_lock(&one_at_a_time);
	log.seen = find_seen(cursor->stream, run);
	if (length < 0 || (size_t)length >= sizeof(log.directory))
		complain(&log, strerror(ENAMETOOLONG));
	else if (!open_and_note(&log, bytes, n))
		complain(&log, strerror(errno));
	pthread_mutex_unlock(&one_at_a_time);
}
