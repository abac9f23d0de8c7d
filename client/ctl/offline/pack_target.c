/* The output of `tokctl pack`: a file, or a directory with its state. */
#include "client/ctl/offline/shards.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool join(const struct pack_target *t, char *path, const char *name, struct fault *fault)
{
	int n = snprintf(
		path, PATH_MAX, "%s%s%s", t->path, bytes_ends_in(t->path, "/") ? "" : "/", name);

	return (n >= 0 && n < PATH_MAX) || pack_fail(fault, t->path, ENAMETOOLONG);
}

bool pack_target_name(
	const struct pack_target *t, uint64_t i, char *path, char *part, struct fault *fault)
{
	const char *ending = pack_formats[t->how->format].ending, *slash = strrchr(t->path, '/');
	char name[64];

	if (t->single) {
		int before = slash ? (int)(slash + 1 - t->path) : 0;
		int n = snprintf(part, PATH_MAX, "%.*s.part-%s", before, t->path, t->path + before);

		snprintf(path, PATH_MAX, "%s", t->path);
		return (n >= 0 && n < PATH_MAX) || pack_fail(fault, t->path, ENAMETOOLONG);
	}
	snprintf(name, sizeof(name), ".part-shard-%05" PRIu64 "%s", i, ending);
	return join(t, part, name, fault) && join(t, path, name + sizeof(".part-") - 1, fault);
}

static bool size_of(const char *path, uint64_t *bytes)
{
	struct stat st;

	if (lstat(path, &st) != 0)
		return false;
	*bytes = (uint64_t)st.st_size;
	return true;
}

static bool is_empty(const char *path)
{
	DIR *dir = opendir(path);
	bool empty = dir;

	for (struct dirent *e; dir && empty && (e = readdir(dir));)
		empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
	if (dir)
		closedir(dir);
	return empty;
}

/* Reads which shards are finished. An incomplete last line is cut off: its shard was not renamed
 * yet. */
static bool read_done(const struct pack_target *t, FILE *state, struct pack_done *done,
	const char *path, struct fault *fault)
{
	char line[256];
	long at = ftell(state);

	for (; fgets(line, sizeof(line), state) && strchr(line, '\n'); at = ftell(state)) {
		struct pack_result r;
		uint64_t i;

		if (sscanf(line,
			    "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNx64 " %" SCNu64 " %" SCNu64
			    " %" SCNu64,
			    &i, &r.bytes, &r.documents, &r.digest, &r.padding, &r.cut,
			    &r.split) != 7 ||
			i >= t->shards)
			return fault_set(fault, FAULT_ARGUMENT, "",
				"%s: damaged; remove %s and begin again", path, t->path);
		done[i] = (struct pack_done){true, r};
	}
	return ftruncate(t->state, at) == 0 || pack_fail(fault, path, errno);
}

/* Checks that the finished shards exist and have not changed. One that was not renamed is written
 * again. */
static bool check_done(const struct pack_target *t, struct pack_done *done, struct fault *fault)
{
	char path[PATH_MAX], part[PATH_MAX];
	uint64_t bytes;

	for (uint64_t i = 0; i < t->shards; i++) {
		if (!pack_target_name(t, i, path, part, fault))
			return false;
		if (!done[i].is) {
			if (size_of(path, &bytes))
				return fault_set(fault, FAULT_ARGUMENT, "",
					"%s: exists, but this run has not written it; give another "
					"directory",
					path);
			continue;
		}
		if (!size_of(path, &bytes)) {
			done[i].is = false;
			pack_out_remove(t->how, path); /* a side file whose shard was not renamed */
		} else if (bytes != done[i].result.bytes) {
			return fault_set(fault, FAULT_ARGUMENT, "",
				"%s: has %" PRIu64 " bytes, but %" PRIu64
				" were written before the interruption; remove %s and begin again",
				path, bytes, done[i].result.bytes, t->path);
		}
	}
	return true;
}

/* Reads the state, or begins it. A new one has no shards: none is begun before its first line. */
static bool read_state(
	const struct pack_target *t, const char *path, struct pack_done *done, struct fault *fault)
{
	char line[64], first[64];
	FILE *state = fopen(path, "re");
	bool fine;

	if (!state)
		return pack_fail(fault, path, errno);
	snprintf(line, sizeof(line), "tokctl pack 1 %016" PRIx64 "\n", t->digest);
	if (!fgets(first, sizeof(first), state) || feof(state))
		fine = (ftruncate(t->state, 0) == 0 && dprintf(t->state, "%s", line) > 0 &&
			       fsync(t->state) == 0) ||
		       pack_fail(fault, path, errno);
	else if (strcmp(first, line) != 0)
		fine = fault_set(fault, FAULT_ARGUMENT, "",
			"%s: contains an interrupted pack of other inputs or with other options; "
			"finish that one, or remove the directory",
			t->path);
	else
		fine = read_done(t, state, done, path, fault);
	fclose(state);
	return fine;
}

static bool open_directory(struct pack_target *t, struct pack_done *done, struct fault *fault)
{
	char path[PATH_MAX];
	bool fresh = mkdir(t->path, 0777) == 0;

	if (!fresh && errno != EEXIST)
		return pack_fail(fault, t->path, errno);
	if (!join(t, path, ".pack", fault))
		return false;
	fresh |= is_empty(t->path);
	t->state = open(path, O_RDWR | O_APPEND | O_CLOEXEC | (fresh ? O_CREAT : 0), 0666);
	if (t->state < 0 && errno == ENOENT)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s: is not empty, and nothing is overwritten; give a new directory",
			t->path);
	if (t->state < 0)
		return pack_fail(fault, path, errno);
	if (flock(t->state, LOCK_EX | LOCK_NB) != 0)
		return errno == EWOULDBLOCK
			       ? fault_set(fault, FAULT_ARGUMENT, "",
					 "%s: another tokctl pack is writing to it", t->path)
			       : pack_fail(fault, path, errno);
	return read_state(t, path, done, fault) && check_done(t, done, fault);
}

bool pack_target_open(struct pack_target *t, struct pack_done *done, struct fault *fault)
{
	char side[PATH_MAX];
	uint64_t bytes;

	if (!t->single)
		return open_directory(t, done, fault);
	if (size_of(t->path, &bytes))
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s: exists, and nothing is overwritten; give another name", t->path);
	if (pack_side_path(t->how, t->path, side) && size_of(side, &bytes))
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s: exists, and nothing is overwritten; give another name", side);
	return true;
}

static bool move(const char *from, const char *to, struct fault *fault)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return true;
	/* Not every file system has RENAME_NOREPLACE. */
	if (errno == EINVAL && access(to, F_OK) != 0 && rename(from, to) == 0)
		return true;
	return pack_fail(fault, to, errno == EINVAL ? EEXIST : errno);
}

bool pack_target_publish(
	const struct pack_target *t, uint64_t i, const struct pack_result *r, struct fault *fault)
{
	char path[PATH_MAX], part[PATH_MAX], from[PATH_MAX], to[PATH_MAX];
	bool fine = pack_target_name(t, i, path, part, fault);

	if (fine && !t->single)
		fine = (dprintf(t->state,
				"%" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 " %" PRIu64
				" %" PRIu64 " %" PRIu64 "\n",
				i, r->bytes, r->documents, r->digest, r->padding, r->cut,
				r->split) > 0 &&
			       fsync(t->state) == 0) ||
		       pack_fail(fault, t->path, errno);
	/* The side file goes first: a shard without one would be taken for a flat file. */
	if (fine && pack_side_path(t->how, part, from) && pack_side_path(t->how, path, to))
		fine = move(from, to, fault);
	fine = fine && move(part, path, fault) &&
	       (ctl_file_sync_parent(path) || pack_fail(fault, path, errno));
	if (!fine)
		pack_out_remove(t->how, part);
	return fine;
}

bool pack_target_end(const struct pack_target *t, struct fault *fault)
{
	char state[PATH_MAX];

	return t->single || (join(t, state, ".pack", fault) &&
				    (unlink(state) == 0 || pack_fail(fault, state, errno)));
}

void pack_target_close(struct pack_target *t)
{
	if (t->state >= 0)
		close(t->state);
	t->state = -1;
}
