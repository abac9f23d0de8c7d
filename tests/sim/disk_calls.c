/* File calls on the disk of the caller's node. */
#include "tests/sim/disk.h"
#include "tests/sim/node.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

static struct disk *here(void)
{
	return fiber_proc()->node->disk;
}

/* The beginning of a call: it takes a while, and may fail. */
static bool begin(bool writes)
{
	int error;

	system_call();
	if (!disk_fails(here(), writes, &error))
		return true;
	errno = error;
	return false;
}

static struct inode *inode_of(int fd)
{
	struct file *f = fd_get(fd);

	CHECK(!f || f->kind == FILE_DISK);
	return f ? f->of : NULL;
}

static struct inode *base(int at, const char *path)
{
	return path[0] == '/' || at == AT_FDCWD ? here()->root : inode_of(at);
}

static void disk_closed(struct file *f)
{
	inode_put(f->of);
}

static int open_inode(struct inode *i)
{
	i->refs++;
	return fd_add(fiber_proc(), file_new(FILE_DISK, i, disk_closed));
}

int __wrap_openat(int at, const char *path, int flags, ...);
int __wrap_openat(int at, const char *path, int flags, ...)
{
	char last[NAME_BYTES];

	if (!begin(flags & O_CREAT))
		return -1;
	struct inode *dir = disk_parent(base(at, path), path, last);
	struct inode *i = dir ? disk_find(dir, last) : NULL;

	if (!dir)
		return -1;
	if (i && (flags & O_CREAT) && (flags & O_EXCL)) {
		errno = EEXIST;
		return -1;
	}
	if (!i && !(flags & O_CREAT)) {
		errno = ENOENT;
		return -1;
	}
	if (i && (flags & O_DIRECTORY) && !i->dir) {
		errno = ENOTDIR;
		return -1;
	}
	if (!i) {
		i = inode_new(false);
		entries_set(&dir->entries, last, i);
		inode_put(i);
	}
	if (flags & O_TRUNC)
		i->n = 0;
	return open_inode(i);
}

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	return __wrap_openat(AT_FDCWD, path, flags, 0644);
}

ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n)
{
	if (!begin(false))
		return -1;
	struct file *f = fd_get(fd);
	struct inode *i = f->of;
	size_t left = f->at < i->n ? i->n - f->at : 0;

	n = n < left ? n : left;
	if (n > 1 && chance(4))
		n = 1 + draw(n); /* short */
	if (n)
		memcpy(to, i->bytes + f->at, n);
	f->at += n;
	return (ssize_t)n;
}

ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
	if (!begin(true))
		return -1;
	struct file *f = fd_get(fd);
	struct inode *i = f->of;

	if (n > 1 && chance(4))
		n = 1 + draw(n);
	if (f->at + n > i->room) {
		uint8_t *more = __real_calloc(1, 2 * (f->at + n));

		CHECK(more);
		if (i->n)
			memcpy(more, i->bytes, i->n);
		__real_free(i->bytes);
		i->bytes = more;
		i->room = 2 * (f->at + n);
	}
	memcpy(i->bytes + f->at, bytes, n);
	f->at += n;
	if (f->at > i->n)
		i->n = f->at;
	return (ssize_t)n;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct inode *i = inode_of(fd);

	if (!begin(true)) {
		i->poisoned = true;
		return -1;
	}
	inode_sync(i);
	return 0;
}

static int make_directory(int at, const char *path)
{
	char last[NAME_BYTES];

	if (!begin(true))
		return -1;
	struct inode *dir = disk_parent(base(at, path), path, last), *new;

	if (!dir)
		return -1;
	if (disk_find(dir, last)) {
		errno = EEXIST;
		return -1;
	}
	new = inode_new(true);
	entries_set(&dir->entries, last, new);
	inode_put(new);
	return 0;
}

int __wrap_mkdirat(int at, const char *path, mode_t mode);
int __wrap_mkdirat(int at, const char *path, mode_t mode)
{
	(void)mode;
	return make_directory(at, path);
}

int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	(void)mode;
	return make_directory(AT_FDCWD, path);
}

int __wrap_unlinkat(int at, const char *path, int flags);
int __wrap_unlinkat(int at, const char *path, int flags)
{
	char last[NAME_BYTES];

	(void)flags;
	if (!begin(false))
		return -1;
	struct inode *dir = disk_parent(base(at, path), path, last);

	if (dir && entries_remove(&dir->entries, last))
		return 0;
	errno = ENOENT;
	return -1;
}

int __wrap_rmdir(const char *path);
int __wrap_rmdir(const char *path)
{
	struct inode *i = disk_find(here()->root, path);

	if (i && i->entries) {
		errno = ENOTEMPTY;
		return -1;
	}
	return __wrap_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int __wrap_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new)
{
	char first[NAME_BYTES], second[NAME_BYTES];

	if (!begin(true))
		return -1;
	struct inode *a = disk_parent(base(from, old), old, first),
		     *b = disk_parent(base(to, new), new, second);
	struct inode *i = a && b ? entries_find(a->entries, first) : NULL;

	if (!i) {
		errno = ENOENT;
		return -1;
	}
	if (entries_find(b->entries, second) == i)
		return 0; /* two names of one file: nothing happens */
	entries_set(&b->entries, second, i);
	entries_remove(&a->entries, first);
	return 0;
}

int __wrap_linkat(int from, const char *old, int to, const char *new, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *new, int flags)
{
	char last[NAME_BYTES];

	(void)flags;
	if (!begin(true))
		return -1;
	struct inode *i = disk_find(base(from, old), old),
		     *dir = disk_parent(base(to, new), new, last);

	if (!i || !dir)
		return -1;
	if (entries_find(dir->entries, last)) {
		errno = EEXIST;
		return -1;
	}
	entries_set(&dir->entries, last, i);
	return 0;
}

/* ---- looking ---- */

static int fill(const struct inode *i, struct stat *st)
{
	if (!i)
		return -1;
	*st = (struct stat){.st_ino = i->number,
		.st_dev = 1,
		.st_size = (off_t)i->n,
		.st_nlink = 1,
		.st_mode = (i->dir ? S_IFDIR : S_IFREG) | i->mode};
	return 0;
}

int disk_stat(struct file *file, struct stat *st);
int disk_stat(struct file *file, struct stat *st)
{
	return fill(file->of, st);
}

int __wrap_stat(const char *path, struct stat *st);
int __wrap_stat(const char *path, struct stat *st)
{
	return begin(false) ? fill(disk_find(here()->root, path), st) : -1;
}

int __wrap_fstatat(int at, const char *path, struct stat *st, int flags);
int __wrap_fstatat(int at, const char *path, struct stat *st, int flags)
{
	(void)flags;
	return begin(false) ? fill(disk_find(base(at, path), path), st) : -1;
}

int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
	(void)mode;
	return begin(false) && disk_find(here()->root, path) ? 0 : -1;
}

int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode)
{
	inode_of(fd)->mode = mode;
	return 0;
}

int __wrap_fchown(int fd, uid_t uid, gid_t gid);
int __wrap_fchown(int fd, uid_t uid, gid_t gid)
{
	(void)fd, (void)uid, (void)gid;
	return 0;
}

struct listing {
	int fd;
	unsigned n, at;
	struct dirent entry;
	char name[512][NAME_BYTES];
	bool is_dir[512];
};

DIR *__wrap_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd)
{
	struct listing *l = __wrap_calloc(1, sizeof(*l));

	l->fd = fd;
	for (struct entry *e = inode_of(fd)->entries; e && l->n < 512; e = e->next) {
		strcpy(l->name[l->n], e->name);
		l->is_dir[l->n++] = e->inode->dir;
	}
	return (DIR *)l;
}

DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
	int fd = __wrap_openat(AT_FDCWD, path, O_DIRECTORY);

	return fd >= 0 ? __wrap_fdopendir(fd) : NULL;
}

struct dirent *__wrap_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir)
{
	struct listing *l = (struct listing *)dir;

	if (l->at == l->n)
		return NULL;
	l->entry.d_type = l->is_dir[l->at] ? DT_DIR : DT_REG;
	strcpy(l->entry.d_name, l->name[l->at++]);
	return &l->entry;
}

int __wrap_close(int fd);
int __wrap_closedir(DIR *dir);
int __wrap_closedir(DIR *dir)
{
	struct listing *l = (struct listing *)dir;

	__wrap_close(l->fd);
	__wrap_free(l);
	return 0;
}

/* ---- locks ---- */

void disk_unlock_all(struct disk *disk, struct proc *proc)
{
	for (unsigned i = 0; i < LOCKS; i++)
		if (disk->lock[i].proc == proc)
			disk->lock[i].proc = NULL;
}

int disk_lock(struct file *file, int command, struct flock *lock);
int disk_lock(struct file *file, int command, struct flock *lock)
{
	struct disk *d = here();
	struct proc *p = fiber_proc();
	unsigned mine = LOCKS, none = LOCKS;

	system_call();
	for (unsigned i = 0; i < LOCKS; i++) {
		if (!d->lock[i].proc) {
			none = i;
		} else if (d->lock[i].inode == file->of && d->lock[i].at == lock->l_start) {
			if (d->lock[i].proc == p)
				mine = i;
			else if (d->lock[i].write || lock->l_type == F_WRLCK) {
				if (command == F_GETLK) {
					lock->l_pid = d->lock[i].proc->pid;
					return 0;
				}
				if (lock->l_type != F_UNLCK) {
					errno = EAGAIN;
					return -1;
				}
			}
		}
	}
	if (command == F_GETLK) {
		lock->l_type = F_UNLCK;
	} else if (lock->l_type == F_UNLCK) {
		if (mine < LOCKS)
			d->lock[mine].proc = NULL;
	} else {
		unsigned i = mine < LOCKS ? mine : none;

		CHECK(i < LOCKS);
		d->lock[i].proc = p;
		d->lock[i].inode = file->of;
		d->lock[i].at = lock->l_start;
		d->lock[i].write = lock->l_type == F_WRLCK;
	}
	return 0;
}
