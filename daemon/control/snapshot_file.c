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

/* Writes DIRECTORY/RUN/FILE to @path. False: too long. */
static bool join(char path[PATH_MAX], const char *directory, const char *run, const char *file)
{
	return snprintf(path, PATH_MAX, "%s/%s/%s", directory, run, file) < PATH_MAX;
}

static bool too_long(struct fault *fault)
{
	return fault_set(fault, FAULT_STATE_DIR, "state_dir", "state_dir: the path is too long");
}

/* ---- writing ---- */

static bool failed(const struct snapshot_saved *saved, int error, struct fault *fault)
{
	return fault_errno(fault, error, "state_dir",
		"%s: %s; the previous snapshot, if any, is unchanged", saved->path,
		strerror(error));
}

/* Makes the file @name also available as @former, atomically. */
static bool keep_former(int at, const char *name, const char *former, struct fault *fault)
{
	char temporary[DURABLE_NAME_BYTES];

	if (!durable_temporary(temporary, fault))
		return false;
	if (linkat(at, name, at, temporary, 0) < 0)
		return fault_errno(fault, errno, "state_dir", "%s: %s", name, strerror(errno));

	bool kept = renameat(at, temporary, at, former) == 0 ||
		    fault_errno(fault, errno, "state_dir", "%s: %s", former, strerror(errno));

	/* rename() does nothing if both names are one file already, which a kill after this
	 * function causes. The temporary name then still exists. */
	unlinkat(at, temporary, 0);
	return kept;
}

/* Undoes a save that may not be durable, so that the next save does not take it for durable. */
static void take_back(int at, const char *name, const char *former, bool replaced)
{
	if (replaced)
		renameat(at, former, at, name);
	else
		unlinkat(at, name, 0);
}

/* Has the run reached SNAPSHOTS_MOST? */
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

/* Writes @bytes to a temporary file, and renames it to @name. */
static bool write_and_rename(int at, const char *name, const char *former, const void *bytes,
	size_t n, bool replaced, struct fault *fault)
{
	char temporary[DURABLE_NAME_BYTES];

	if (!durable_temporary(temporary, fault))
		return false;
	if (durable_write_file(at, temporary, bytes, n, fault) &&
		(!replaced || keep_former(at, name, former, fault))) {
		if (renameat(at, temporary, at, name) == 0)
			return true;
		fault_errno(fault, errno, "state_dir", "%s: %s", name, strerror(errno));
	}
	unlinkat(at, temporary, 0);
	return false;
}

/* Replaces @name in the locked directory @dir by @bytes. */
static bool replace(const struct run_dir *dir, const char *name, const char *former,
	const void *bytes, size_t n, bool limited, struct snapshot_saved *saved,
	struct fault *fault)
{
	char now[LIMIT_CURSOR_BYTES];
	ssize_t have = durable_read_file(dir->at, name, now, sizeof(now), fault);
	struct stat st;

	if (have == (ssize_t)n &&
		memcmp(now, bytes, n) == 0) /* another rank of this job has saved it */
		return durable_sync(dir->at, fault) || failed(saved, fault->error, fault);
	/* The previous file is kept even if it is damaged. */
	saved->replaced = fstatat(dir->at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (!saved->replaced && errno != ENOENT)
		return failed(saved, errno, fault);
	if (limited && !saved->replaced && is_full(dir->at))
		return fault_set(fault, FAULT_STATE_DIR, "state_dir",
			"%s: the run has %d snapshots, which is the limit; remove old ones",
			dir->path, SNAPSHOTS_MOST);
	if (!write_and_rename(dir->at, name, former, bytes, n, saved->replaced, fault))
		return failed(saved, fault->error, fault);
	saved->written = true;
	if (durable_sync(dir->at, fault))
		return true;
	take_back(dir->at, name, former, saved->replaced);
	return failed(saved, fault->error, fault);
}

static bool is_former(const char *tag)
{
	size_t n = strlen(tag), tail = strlen(FORMER);

	return n >= tail && strcmp(tag + n - tail, FORMER) == 0;
}

bool snapshot_file_save(const struct run_place *place, const char *tag, const void *bytes, size_t n,
	struct snapshot_saved *saved, struct fault *fault)
{
	char directory[PATH_MAX], name[LIMIT_NAME_BYTES + 16], former[LIMIT_NAME_BYTES + 16];
	struct run_dir dir;

	*saved = (struct snapshot_saved){.owner = RUN_NOBODY};
	if (!run_dir_path(place, directory, fault))
		return false;
	if (is_former(tag))
		return fault_set(fault, FAULT_ARGUMENT, "state_dir",
			"tag: %s: names that end in " FORMER
			" are reserved for the previous snapshot of a tag",
			tag);
	snprintf(name, sizeof(name), "%s.cursor", tag);
	snprintf(former, sizeof(former), "%s" FORMER ".cursor", tag);
	if (snprintf(saved->path, sizeof(saved->path), "%s/%s", directory, name) >=
		(int)sizeof(saved->path))
		return too_long(fault);
	saved->opened = run_dir_open(&dir, place, fault);
	saved->owner = dir.owner;
	if (!saved->opened)
		return false;

	bool ok = replace(&dir, name, former, bytes, n, place->uid != 0, saved, fault);

	run_dir_close(&dir);
	if (ok && saved->replaced)
		log_client(place->uid, LOG_NOTE,
			"snapshot %s of stream %s, run %s, saved again: the previous one is now "
			"%s" FORMER,
			tag, place->stream, place->run, tag);
	return ok;
}

/* ---- reading ---- */

/* 1: it exists; 0: it does not; -1 with @fault: unknown. */
static int is_there(const char *path, struct fault *fault)
{
	if (access(path, F_OK) == 0)
		return 1;
	if (errno == ENOENT || errno == ENOTDIR)
		return 0;
	fault_errno(fault, errno, "tag", "%s: %s", path, strerror(errno));
	return -1;
}

/* The runs of a stream that have a file. */
struct runs_found {
	int n;
	char last[LIMIT_NAME_BYTES + 1]; /* the name of the last one */
	char list[512];			 /* all of them, separated by commas */
};

static void add_run(struct runs_found *found, const char *run)
{
	size_t used = strlen(found->list);

	memcpy(found->last, run, strlen(run) + 1); /* ≤ LIMIT_NAME_BYTES */
	snprintf(found->list + used, sizeof(found->list) - used, "%s%s", found->n++ ? ", " : "",
		run);
}

/* False: they are not all known. */
static bool find_in(DIR *dir, const char *stream_dir, const char *file, struct runs_found *found,
	struct fault *fault)
{
	struct dirent *e;

	while (errno = 0, (e = readdir(dir))) {
		char path[PATH_MAX];

		if (!wire_name_ok(e->d_name) || !join(path, stream_dir, e->d_name, file))
			continue;
		int there = is_there(path, fault);

		if (there < 0)
			return false;
		if (there)
			add_run(found, e->d_name);
	}
	return errno == 0 ||
	       fault_errno(fault, errno, "tag", "%s: %s", stream_dir, strerror(errno));
}

static bool find_runs(
	const char *stream_dir, const char *file, struct runs_found *found, struct fault *fault)
{
	DIR *dir = opendir(stream_dir);

	*found = (struct runs_found){0};
	if (!dir)
		return errno == ENOENT || errno == ENOTDIR ||
		       fault_errno(fault, errno, "tag", "%s: %s", stream_dir, strerror(errno));

	bool all = find_in(dir, stream_dir, file, found, fault);

	closedir(dir);
	return all;
}

/* Is @tag a name, or a name with FORMER after it? */
static bool tag_ok(const char *tag)
{
	char name[SNAPSHOT_TAG_BYTES];
	size_t n = strlen(tag), tail = strlen(FORMER);

	if (n > tail && strcmp(tag + n - tail, FORMER) == 0)
		n -= tail;
	snprintf(name, sizeof(name), "%.*s", (int)n, tag);
	return wire_name_ok(name);
}

/* Splits "RUN/TAG". A plain TAG leaves @run unchanged. */
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

/* Sets @former to the tag of the previous snapshot of @path, if that exists. */
static void offer_former(const char *path, const char *tag, char *former)
{
	char before[PATH_MAX + 16];
	size_t stem = strlen(path) - strlen(".cursor");

	snprintf(before, sizeof(before), "%.*s" FORMER ".cursor", (int)stem, path);
	if (access(before, F_OK) == 0)
		snprintf(former, SNAPSHOT_TAG_BYTES, "%s" FORMER, tag);
}

/* Finds the path of the snapshot, also in another run. */
static bool find_path(const struct run_place *place, const char *run, const char *tag, bool named,
	char path[PATH_MAX], struct fault *fault)
{
	char stream_dir[PATH_MAX], file[SNAPSHOT_TAG_BYTES + 16];
	struct runs_found found;

	snprintf(file, sizeof(file), "%s.cursor", tag);
	if (snprintf(stream_dir, sizeof(stream_dir), "%s/%s", place->state_dir, place->stream) >=
			PATH_MAX ||
		!join(path, stream_dir, run, file))
		return too_long(fault);

	int there = named ? 1 : is_there(path, fault);

	if (there != 0)
		return there > 0;
	if (!find_runs(stream_dir, file, &found, fault))
		return false;
	if (found.n > 1)
		return fault_set(fault, FAULT_ARGUMENT, "tag",
			"run %s has no snapshot %s, but several other runs have: %s; name one as "
			"RUN/%s",
			place->run, tag, found.list, tag);
	return found.n != 1 || join(path, stream_dir, found.last, file) || too_long(fault);
}

size_t snapshot_file_load(const struct run_place *place, const char *tag, void *bytes,
	char former[SNAPSHOT_TAG_BYTES], struct fault *fault)
{
	char path[PATH_MAX], run[SNAPSHOT_TAG_BYTES], name[SNAPSHOT_TAG_BYTES];
	bool named;
	ssize_t n;

	*former = 0;
	snprintf(run, sizeof(run), "%s", place->run);
	if (!split_tag(tag, run, sizeof(run), name, sizeof(name), &named)) {
		fault_set(fault, FAULT_ARGUMENT, "tag", "'%s' is not TAG or RUN/TAG", tag);
		return 0;
	}
	if (!find_path(place, run, name, named, path, fault))
		return 0;
	offer_former(path, tag, former);
	n = durable_read_file(AT_FDCWD, path, bytes, LIMIT_CURSOR_BYTES, fault);
	if (n == 0)
		fault_set(fault, FAULT_DATA, "tag", "%s: the file is empty", path);
	else if (n < 0 && fault->error == ENOENT)
		fault_errno(fault, ENOENT, "tag", "stream %s has no snapshot %s (%s)",
			place->stream, name, path);
	return n > 0 ? (size_t)n : 0;
}
