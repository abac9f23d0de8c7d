#include "tests/disk/calls.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int call_fails(int error)
{
	errno = error;
	return -1;
}

/* False with errno: no such directory. */
static bool find(int at, const char *path, struct disk_where *where)
{
	struct disk_inode *from = disk_here()->root;

	if (*path != '/' && at != AT_FDCWD) {
		const struct disk_file *file = disk_file_of(at);

		if (!file)
			return false;
		from = file->inode;
	}
	return disk_resolve(from, path, where);
}

/* ---- files ---- */

void disk_file_begin(struct disk_file *file, struct disk_inode *inode)
{
	*file = (struct disk_file){.inode = disk_hold(inode)};
}

void disk_file_end(struct disk_file *file)
{
	disk_put(file->inode);
	file->inode = NULL;
}

int __wrap_openat(int at, const char *path, int flags, ...)
{
	struct disk_where where;

	if (call_begins("open", path, flags & O_CREAT) || !find(at, path, &where))
		return -1;
	if (!where.inode && !(flags & O_CREAT))
		return call_fails(ENOENT);
	if (where.inode && (flags & O_CREAT) && (flags & O_EXCL))
		return call_fails(EEXIST);
	if (where.inode && (flags & O_DIRECTORY) && !where.inode->directory)
		return call_fails(ENOTDIR);
	if (!where.inode) {
		where.inode = disk_add_inode(disk_here(), false);
		disk_name(&where, where.inode);
		disk_put(where.inode);
	}
	if (flags & O_TRUNC) {
		disk_blob_use(&where.inode->now, disk_blob("", 0));
		disk_here()->version++;
	}
	return call_ends(0) < 0 ? -1 : disk_file_add(where.inode);
}

/* openat() with variable flags, as gcc compiles it. */
int __wrap___openat_2(int at, const char *path, int flags)
{
	return __wrap_openat(at, path, flags);
}

int __wrap_open(const char *path, int flags, ...)
{
	return __wrap_openat(AT_FDCWD, path, flags);
}

ssize_t __wrap_read(int fd, void *to, size_t n)
{
	struct disk_file *file;

	if (call_begins("read", NULL, false) || !(file = disk_file_of(fd)))
		return -1;
	if (file->inode->directory)
		return call_fails(EISDIR);

	const struct disk_blob *blob = file->inode->now;
	size_t left = blob->n > file->at ? blob->n - file->at : 0;

	n = call_takes(n < left ? n : left, false);
	if (n > 0)
		memcpy(to, blob->at + file->at, n);
	file->at += n;
	return call_ends(0) < 0 ? -1 : (ssize_t)n;
}

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
	struct disk_file *file;

	if (call_begins("write", NULL, true) || !(file = disk_file_of(fd)))
		return -1;

	struct disk_inode *inode = file->inode;
	const struct disk_blob *old = inode->now;

	n = call_takes(n, true);
	assert(file->at <= old->n);

	size_t end = file->at + n > old->n ? file->at + n : old->n;
	struct disk_blob *blob = disk_memory(sizeof(*blob) + end);

	blob->n = end;
	memcpy(blob->at, old->at, old->n);
	memcpy(blob->at + file->at, from, n);
	disk_blob_use(&inode->now, blob);
	inode->disk->retried += inode->failed;
	inode->disk->version++;
	file->at += n;
	return call_ends(0) < 0 ? -1 : (ssize_t)n;
}

int __wrap_fsync(int fd)
{
	bool fails = call_begins("fsync", NULL, true);
	int error = errno;
	struct disk_file *file = disk_file_of(fd);

	if (!file)
		return -1;
	if (!fails && call_ends(0) < 0) {
		fails = true;
		error = errno;
	}
	disk_sync(file->inode, fails);
	return fails ? call_fails(error) : 0;
}

/* ---- names ---- */

int __wrap_mkdirat(int at, const char *path, mode_t mode)
{
	struct disk_where where;

	(void)mode;
	if (call_begins("mkdir", path, true) || !find(at, path, &where))
		return -1;
	if (where.inode)
		return call_fails(EEXIST);
	where.inode = disk_add_inode(disk_here(), true);
	disk_name(&where, where.inode);
	disk_put(where.inode);
	return call_ends(0);
}

int __wrap_unlinkat(int at, const char *path, int flags)
{
	const bool directory = flags & AT_REMOVEDIR;
	struct disk_where where;

	if (call_begins(directory ? "rmdir" : "unlink", path, false) || !find(at, path, &where))
		return -1;
	if (!where.inode)
		return call_fails(ENOENT);
	if (where.inode->directory != directory)
		return call_fails(directory ? ENOTDIR : EISDIR);
	if (directory && !disk_is_empty(where.inode))
		return call_fails(ENOTEMPTY);
	disk_name(&where, NULL);
	return call_ends(0);
}

int __wrap_renameat(int from, const char *old, int to, const char *new)
{
	struct disk_where a, b;

	if (call_begins("rename", new, true) || !find(from, old, &a) || !find(to, new, &b))
		return -1;
	if (!a.inode)
		return call_fails(ENOENT);
	if (a.inode != b.inode) /* otherwise nothing happens: POSIX */
		disk_rename(&a, &b);
	return call_ends(0);
}

static int describe(const struct disk_inode *inode, struct stat *st)
{
	if (!inode)
		return call_fails(ENOENT);
	*st = (struct stat){.st_ino = inode->number,
		.st_dev = 1,
		.st_mode = inode->directory ? S_IFDIR | 0755 : S_IFREG | 0600,
		.st_nlink = 1,
		.st_uid = geteuid(),
		.st_mtim.tv_sec = time(NULL), /* none is a day old */
		.st_size = (off_t)inode->now->n};
	return call_ends(0);
}

int disk_file_stat(int fd, struct stat *st)
{
	const struct disk_file *file;

	if (call_begins("fstat", NULL, false) || !(file = disk_file_of(fd)))
		return -1;
	return describe(file->inode, st);
}
