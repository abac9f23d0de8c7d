#include "daemon/control/snapshot_file.h"

#include "daemon/control/durable.h"
#include "daemon/control/log.h"
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMER ".former"

/* DIRECTORY/RUN/FILE in @path, PATH_MAX long. False with ENAMETOOLONG. */
static bool join(char *path, const char *directory, const char *run, const char *file)
{
	if (snprintf(path, PATH_MAX, "%s/%s/%s", directory, run, file) < PATH_MAX)
		return true;
	errno = ENAMETOOLONG;
	return false;
}

/* Keeps what NAME holds now as FORMER, whatever happens in between. */
static bool keep_former(int at, const char *name, const char *former)
{
	char beside[DURABLE_NAME_BYTES];

	if (!durable_temporary(beside) || linkat(at, name, at, beside, 0) < 0)
		return false;

	bool kept = renameat(at, beside, at, former) == 0;
	int error = errno;

	/* Two names of one file are not renamed: then FORMER is what NAME is, after a kill right
	 * here. */
	unlinkat(at, beside, 0);
	errno = error;
	return kept;
}

/* Undoes a save that may not be durable: whoever asks again must not take it for that. */
static void take_back(int at, const char *name, const char *former, bool replaced)
{
	int error = errno;

	if (replaced)
		renameat(at, former, at, name);
	else
		unlinkat(at, name, 0);
	errno = error;
}

/* Has a run as many snapshots as it may? */
static bool is_full(int at)
{
	int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	unsigned n = 0;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n > SNAPSHOTS_MOST;
}

/* Puts @bytes in place of NAME in directory @at, which is locked. False with errno, or because it
 * is full. */
static bool replace(int at, const char *name, const char *former, const void *bytes, size_t n,
	bool limited, struct snapshot_saved *saved)
{
	char beside[DURABLE_NAME_BYTES], now[LIMIT_CURSOR_BYTES];
	ssize_t have = durable_read_file(at, name, now, sizeof(now));
	struct stat st;

	if (have == (ssize_t)n && memcmp(now, bytes, n) == 0)
		return fsync(at) == 0; /* another rank of this job was faster */
	/* Whatever is there is kept, damaged or not. */
	saved->replaced = fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	saved->full = limited && !saved->replaced && is_full(at);
	if (saved->full || !durable_temporary(beside))
		return false;
	if (!durable_write_file(at, beside, bytes, n))
		goto fail;
	if (saved->replaced && !keep_former(at, name, former))
		goto fail;
	if (renameat(at, beside, at, name) < 0)
		goto fail;
	saved->written = true;
	if (fsync(at) == 0)
		return true;
	take_back(at, name, former, saved->replaced);
	return false;
fail:;
	int error = errno;

	unlinkat(at, beside, 0);
	errno = error;
	return false;
}

bool snapshot_file_save(const struct run_place *place, const char *tag, const void *bytes, size_t n,
	struct snapshot_saved *saved, char *why, size_t why_bytes)
{
	char directory[PATH_MAX], name[LIMIT_NAME_BYTES + 16], former[LIMIT_NAME_BYTES + 16];
	struct run_dir dir;

	*saved = (struct snapshot_saved){.owner = RUN_NOBODY};
	if (!run_dir_path(place, directory))
		return log_why(why, why_bytes, "state_dir: the path is too long");
	if (strlen(tag) >= strlen(FORMER) &&
		strcmp(tag + strlen(tag) - strlen(FORMER), FORMER) == 0)
		return log_why(why, why_bytes,
			"tag: %s: names that end in " FORMER " are kept for what a tag held before",
			tag);
	snprintf(name, sizeof(name), "%s.cursor", tag);
	snprintf(former, sizeof(former), "%s" FORMER ".cursor", tag);
	if (snprintf(saved->path, sizeof(saved->path), "%s/%s", directory, name) >=
		(int)sizeof(saved->path))
		return log_why(why, why_bytes, "state_dir: the path is too long");

	bool ok = run_dir_open(&dir, place, why, why_bytes);

	saved->owner = dir.owner;
	saved->foreign = dir.foreign;
	saved->opened = ok;
	if (!ok)
		return false;
	ok = replace(dir.at, name, former, bytes, n, place->uid != 0, saved);
	if (!ok && saved->full)
		log_why(why, why_bytes,
			"%s: the run has %d snapshots, and may not have more: remove old ones",
			directory, SNAPSHOTS_MOST);
	else if (!ok)
		log_why(why, why_bytes, "%s: %s; the former snapshot, if any, is as it was",
			saved->path, strerror(errno));
	run_dir_close(&dir);
	if (ok && saved->replaced)
		log_client(place->uid, LOG_NOTE,
			"snapshot %s of stream %s, run %s, saved again: the former one is now "
			"%s" FORMER,
			tag, place->stream, place->run, tag);
	return ok;
}

/* ---- reading ---- */

/* Runs of @stream that have @tag: their number, the last one's name in @found, all of them in
 * @list. */
static int find_runs(
	const char *stream_dir, const char *file, char *found, char *list, size_t list_bytes)
{
	DIR *dir = opendir(stream_dir);
	struct dirent *e;
	int n = 0;

	*list = 0;
	while (dir && (e = readdir(dir))) {
		char path[PATH_MAX];

		if (!wire_name_ok(e->d_name) || !join(path, stream_dir, e->d_name, file) ||
			access(path, F_OK) < 0)
			continue;
		n++;
		memcpy(found, e->d_name, strlen(e->d_name) + 1); /* a name is ≤ LIMIT_NAME_BYTES */
		size_t used = strlen(list);

		snprintf(list + used, list_bytes - used, "%s%s", n > 1 ? ", " : "", e->d_name);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* A name, or one with FORMER behind it. */
static bool tag_ok(const char *tag)
{
	char name[SNAPSHOT_TAG_BYTES];
	size_t n = strlen(tag), tail = strlen(FORMER);

	if (n > tail && strcmp(tag + n - tail, FORMER) == 0)
		n -= tail;
	snprintf(name, sizeof(name), "%.*s", (int)n, tag);
	return wire_name_ok(name);
}

/* Splits "RUN/TAG"; a plain TAG leaves @run as it is. */
static bool split_tag(
	const char *text, char *run, size_t run_bytes, char *tag, size_t tag_bytes, bool *named)
{
	const char *slash = strchr(text, '/');

	*named = slash != NULL;
	if (slash)
		snprintf(run, run_bytes, "%.*s", (int)(slash - text), text);
	snprintf(tag, tag_bytes, "%s", slash ? slash + 1 : text);
	return wire_name_ok(run) && tag_ok(tag);
}

/* The tag of what the file @path held before, if that is still there. */
static void offer_former(const char *path, const char *tag, char *former)
{
	char before[PATH_MAX + 16];
	size_t stem = strlen(path) - strlen(".cursor");

	snprintf(before, sizeof(before), "%.*s" FORMER ".cursor", (int)stem, path);
	if (access(before, F_OK) == 0)
		snprintf(former, SNAPSHOT_TAG_BYTES, "%s" FORMER, tag);
}

size_t snapshot_file_load(const char *state_dir, const char *stream, const char *run,
	const char *tag, void *bytes, char *former, char *why, size_t why_bytes)
{
	char stream_dir[PATH_MAX], path[PATH_MAX], list[512];
	char in_run[SNAPSHOT_TAG_BYTES], name[SNAPSHOT_TAG_BYTES], file[SNAPSHOT_TAG_BYTES + 16];
	bool named;
	ssize_t n;

	*former = 0;

	snprintf(in_run, sizeof(in_run), "%s", run);
	if (!split_tag(tag, in_run, sizeof(in_run), name, sizeof(name), &named)) {
		log_why(why, why_bytes, "'%s' is no tag: must be TAG or RUN/TAG", tag);
		return 0;
	}
	snprintf(file, sizeof(file), "%s.cursor", name);
	if (snprintf(stream_dir, sizeof(stream_dir), "%s/%s", state_dir, stream) >= PATH_MAX ||
		!join(path, stream_dir, in_run, file)) {
		log_why(why, why_bytes, "state_dir: the path is too long");
		return 0;
	}
	if (!named && access(path, F_OK) < 0) {
		char other[2 * LIMIT_NAME_BYTES + 2];
		int runs = find_runs(stream_dir, file, other, list, sizeof(list));

		if (runs > 1) {
			log_why(why, why_bytes,
				"run %s has no snapshot %s, but several others have: %s; name one "
				"as RUN/%s",
				run, name, list, name);
			return 0;
		}
		if (runs == 1 && !join(path, stream_dir, other, file)) {
			log_why(why, why_bytes, "state_dir: the path is too long");
			return 0;
		}
	}
	offer_former(path, tag, former);
	n = durable_read_file(AT_FDCWD, path, bytes, LIMIT_CURSOR_BYTES);
	if (n > 0)
		return (size_t)n;
	if (n < 0 && errno == ENOENT)
		log_why(why, why_bytes, "stream %s has no snapshot %s (%s)", stream, name, path);
	else
		log_why(why, why_bytes, "%s: %s", path, n < 0 ? strerror(errno) : "is empty");
	return 0;
}
