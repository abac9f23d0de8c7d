#include "daemon/control/mix_log.h"

#include "daemon/control/durable.h"
#include "daemon/control/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUNS = 16, DIGITS = 6 };

/* The last file of a run's log, as last seen. All ranks of a job attach with the same mix, one
 * after another. */
struct seen {
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	uint64_t number;    /* 0: unknown */
	uint64_t checksum;  /* of its mix */
	uint64_t complaint; /* checksum of the last mix whose failure was logged */
	uid_t owner;	    /* of the run */
};

struct log_of {
	char directory[PATH_MAX];
	int at; /* the directory, open */
	struct seen *seen;
	uint64_t checksum; /* of the mix to note */
};

struct mix_logs {
	struct seen seen[RUNS];
	unsigned next; /* the entry to be replaced next */
};

struct mix_logs *mix_logs_new(void)
{
	return calloc(1, sizeof(struct mix_logs));
}

void mix_logs_free(struct mix_logs *logs)
{
	free(logs);
}

uint64_t mix_checksum(const struct cursor *cursor)
{
	struct cursor begin = *cursor; /* shares all memory; only encoded */
	char bytes[LIMIT_CURSOR_BYTES];

	begin.next = begin.segment[0]->start;
	return order_checksum(bytes, cursor_encode(&begin, bytes, sizeof(bytes)));
}

static struct seen *find_seen(struct mix_logs *logs, const char *stream, const char *run)
{
	struct seen *seen;

	for (unsigned i = 0; i < RUNS; i++)
		if (strcmp(logs->seen[i].stream, stream) == 0 &&
			strcmp(logs->seen[i].run, run) == 0)
			return &logs->seen[i];
	seen = &logs->seen[logs->next++ % RUNS];
	*seen = (struct seen){.owner = RUN_NOBODY};
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

/* The number in a file's name; 0: not a file of the log. */
static uint64_t number_of(const char *name)
{
	size_t digits = strspn(name, "0123456789");

	if (digits < DIGITS || digits > 19 || strcmp(name + digits, ".cursor") != 0)
		return 0;
	return strtoull(name, NULL, 10);
}

static bool failed(const struct log_of *log, int error, struct fault *fault)
{
	return fault_errno(fault, error, "state_dir", "%s: %s", log->directory, strerror(error));
}

/* The highest number in the directory; 0: none. */
static bool last_number(const struct log_of *log, uint64_t *last, struct fault *fault)
{
	DIR *dir = opendir(log->directory);
	struct dirent *e;

	*last = 0;
	if (!dir)
		return failed(log, errno, fault);
	errno = 0;
	while ((e = readdir(dir))) {
		uint64_t number = number_of(e->d_name);

		if (number > *last)
			*last = number;
	}

	bool ok = errno == 0 || failed(log, errno, fault);

	closedir(dir);
	return ok;
}

/* Does file @number contain the mix to add? A damaged one does not. */
static bool holds(const struct log_of *log, uint64_t number)
{
	struct cursor cursor = {0};
	struct fault fault;
	char bytes[LIMIT_CURSOR_BYTES], name[32];

	name_of(number, name);
	ssize_t n = durable_read_file(log->at, name, bytes, sizeof(bytes), &fault);
	bool same = n > 0 && cursor_decode(&cursor, bytes, (size_t)n, &fault) &&
		    mix_checksum(&cursor) == log->checksum;

	cursor_free(&cursor);
	return same;
}

/* Adds file @number. EEXIST: a daemon of an earlier version, which takes no lock, has just added
 * it. */
static bool add(
	const struct log_of *log, uint64_t number, const void *bytes, size_t n, struct fault *fault)
{
	char temporary[DURABLE_NAME_BYTES], name[32];

	if (!durable_temporary(temporary, fault))
		return failed(log, fault->error, fault);
	name_of(number, name);

	bool done = durable_write_file(log->at, temporary, bytes, n, fault) ||
		    failed(log, fault->error, fault);

	done = done &&
	       (linkat(log->at, temporary, log->at, name, 0) == 0 || failed(log, errno, fault));
	unlinkat(log->at, temporary, 0);
	if (!done || fsync(log->at) == 0)
		return done;
	failed(log, errno, fault);
	unlinkat(log->at, name, 0); /* otherwise the next attach would take it for durable */
	return false;
}

/* Adds the mix, in the open directory log->at. A file that a killed daemon added may not be durable
 * yet. */
static bool note(struct log_of *log, const void *bytes, size_t n, struct mix_noted *noted,
	struct fault *fault)
{
	uint64_t last, tried = 0;

	log->seen->number = 0; /* unknown, if this fails */
	for (;;) {
		if (!last_number(log, &last, fault))
			return false;
		if (last > 0 && holds(log, last)) {
			if (fsync(log->at) < 0)
				return failed(log, errno, fault);
			break;
		}
		if (last + 1 == tried) /* its name has too many digits to be counted */
			return failed(log, EEXIST, fault);
		tried = ++last;
		noted->added = add(log, last, bytes, n, fault);
		if (noted->added)
			break;
		if (fault->error != EEXIST)
			return false;
	}
	log->seen->number = last;
	log->seen->checksum = log->checksum;
	log->seen->complaint = 0;
	return true;
}

/* Opens the log's directory, and makes it durable: a killed daemon may have made it. */
static bool open_directory(struct log_of *log, const struct run_dir *dir, struct fault *fault)
{
	bool made = mkdirat(dir->at, "mixes", 0755) == 0;

	if (!made && errno != EEXIST)
		return failed(log, errno, fault);
	if (fsync(dir->at) < 0) {
		failed(log, errno, fault);
		if (made)
			unlinkat(dir->at, "mixes", AT_REMOVEDIR);
		return false;
	}
	log->at = openat(dir->at, "mixes", RUN_DIR_FLAGS);
	return log->at >= 0 || failed(log, errno, fault);
}

/* Adds the mix, in the locked directory of the run. */
static bool open_and_note(struct log_of *log, const struct run_dir *dir, const void *bytes,
	size_t n, struct mix_noted *noted, struct fault *fault)
{
	if (!open_directory(log, dir, fault))
		return false;

	bool done = note(log, bytes, n, noted, fault);

	close(log->at);
	return done;
}

static void complain(struct log_of *log, const struct run_place *place, const char *why)
{
	if (log->seen->complaint == log->checksum)
		return;
	log->seen->complaint = log->checksum;
	log_client(place->uid, LOG_WARNING,
		"stream %s, run %s: cannot write the mix log: %s; the run continues, but tokctl "
		"--run will not know this mix",
		log->seen->stream, log->seen->run, why);
}

/* Does the last file contain this mix, according to the cache? */
static bool is_noted(const struct log_of *log, const struct run_place *place)
{
	const struct seen *seen = log->seen;
	bool may = place->privileged || seen->owner == place->uid;

	return may && seen->number > 0 && seen->checksum == log->checksum &&
	       exists(log, seen->number) && !exists(log, seen->number + 1);
}

static bool add_to(struct log_of *log, const struct run_place *place, const void *bytes, size_t n,
	struct mix_noted *noted, struct fault *fault)
{
	struct run_dir dir;

	noted->opened = run_dir_open(&dir, place, fault);
	noted->owner = log->seen->owner = dir.owner;
	if (!noted->opened)
		return false;

	bool ok = open_and_note(log, &dir, bytes, n, noted, fault);

	run_dir_close(&dir);
	return ok;
}

bool mix_log_note(struct mix_logs *logs, const struct run_place *place, uint64_t checksum,
	const void *bytes, size_t n, struct mix_noted *noted)
{
	struct log_of log = {
		.at = -1, .checksum = checksum, .seen = find_seen(logs, place->stream, place->run)};
	struct fault fault;

	*noted = (struct mix_noted){.owner = log.seen->owner};
	if (snprintf(log.directory, sizeof(log.directory), "%s/%s/%s/mixes", place->state_dir,
		    place->stream, place->run) >= (int)sizeof(log.directory)) {
		complain(&log, place, "state_dir: the path is too long");
		return false;
	}
	if (is_noted(&log, place) || add_to(&log, place, bytes, n, noted, &fault))
		return true;
	complain(&log, place, fault.text);
	return false;
}
