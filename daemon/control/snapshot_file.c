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

/* DIRECTORY/RUN/FILE in @path. False: too long. */
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
		"%s: %s; the former snapshot, if any, is as it was", saved->path, strerror(error));
}

/* Keeps what NAME holds now as FORMER, whatever happens in between. */
static bool keep_former(int at, const char *name, const char *former, struct fault *fault)
{
	char temporary[DURABLE_NAME_BYTES];

	if (!durable_temporary(temporary, fault))
		return false;
	if (linkat(at, name, at, temporary, 0) < 0)
		return fault_errno(fault, errno, "state_dir", "%s: %s", name, strerror(errno));

	bool kept = renameat(at, temporary, at, former) == 0 ||
		    fault_errno(fault, errno, "state_dir", "%s: %s", former, strerror(errno));

	/* Two names of one file are not renamed: then FORMER is what NAME is, after a kill right
	 * here. */
	unlinkat(at, temporary, 0);
	return kept;
}

/* Undoes a save that may not be durable: the next save must not take it for durable. */
static void take_back(int at, const char *name, const char *former, bool replaced)
{
	if (replaced)
		renameat(at, former, at, name);
	else
		unlinkat(at, name, 0);
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

/* Writes @bytes to a temporary file, and renames that to NAME. */
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

/* Puts @bytes in place of NAME in @dir, which is locked. */
static bool replace(const struct run_dir *dir, const char *name, const char *former,
	const void *bytes, size_t n, bool limited, struct snapshot_saved *saved,
	struct fault *fault)
{
	char now[LIMIT_CURSOR_BYTES];
	ssize_t have = durable_read_file(dir->at, name, now, sizeof(now), fault);
	struct stat st;

	if (have == (ssize_t)n &&
		memcmp(now, bytes, n) == 0) /* another rank of this job was faster */
		return durable_sync(dir->at, fault) || failed(saved, fault->error, fault);
	/* Whatever is there is kept, damaged or not. */
	saved->replaced = fstatat(dir->at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (limited && !saved->replaced && is_full(dir->at))
		return fault_set(fault, FAULT_STATE_DIR, "state_dir",
			"%s: the run has %d snapshots, and may not have more: remove old ones",
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
			"tag: %s: names that end in " FORMER " are kept for what a tag held before",
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

/* A name, or one with FORMER after it. */
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

/* The path of the snapshot, also if it is another run's. */
static bool find_path(const struct run_place *place, const char *run, const char *tag, bool named,
	char path[PATH_MAX], struct fault *fault)
{
	char stream_dir[PATH_MAX], list[512], other[2 * LIMIT_NAME_BYTES + 2];
	char file[SNAPSHOT_TAG_BYTES + 16];

	snprintf(file, sizeof(file), "%s.cursor", tag);
	if (snprintf(stream_dir, sizeof(stream_dir), "%s/%s", place->state_dir, place->stream) >=
			PATH_MAX ||
		!join(path, stream_dir, run, file))
		return too_long(fault);
	if (named || access(path, F_OK) == 0)
		return true;

	int runs = find_runs(stream_dir, file, other, list, sizeof(list));

	if (runs > 1)
		return fault_set(fault, FAULT_ARGUMENT, "tag",
			"run %s has no snapshot %s, but several others have: %s; name one as "
			"RUN/%s",
			place->run, tag, list, tag);
	return runs != 1 || join(path, stream_dir, other, file) || too_long(fault);
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
		fault_set(fault, FAULT_ARGUMENT, "tag", "'%s' is no tag: must be TAG or RUN/TAG",
			tag);
		return 0;
	}
	if (!find_path(place, run, name, named, path, fault))
		return 0;
	offer_former(path, tag, former);
	n = durable_read_file(AT_FDCWD, path, bytes, LIMIT_CURSOR_BYTES, fault);
	if (n == 0)
		fault_set(fault, FAULT_DATA, "tag", "%s: is empty", path);
	else if (n < 0 && fault->error == ENOENT)
		fault_errno(fault, ENOENT, "tag", "stream %s has no snapshot %s (%s)",
			place->stream, name, path);
	return n > 0 ? (size_t)n : 0;
}
