/* The calls on names, directories and locks of a mounted disk. */
#include "tests/unit/disk_calls.h"

struct stream {
	int fd;
	unsigned at;
	struct dirent entry;
};

int __real_fcntl(int fd, int command, ...);
int __real_mkdir(const char *path, mode_t mode);
DIR *__real_opendir(const char *path);
struct dirent *__real_readdir(DIR *dir);
int __real_closedir(DIR *dir);

/* ---- names ---- */

static int make_at(int at, const char *path)
{
	struct where where;

	if (call_begins("mkdir") || !find(at, path, &where))
		return -1;
	if (where.inode >= 0)
		return call_fails(EEXIST);
	name_set(&where, disk_add_inode(DISK, true));
	return call_ends(0);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
	return DISK ? make_at(AT_FDCWD, path) : __real_mkdir(path, mode);
}

int __wrap_mkdirat(int at, const char *path, mode_t mode)
{
	(void)mode;
	return make_at(at, path);
}

static int remove_at(int at, const char *path, bool directory)
{
	struct where where;

	if (call_begins(directory ? "rmdir" : "unlink") || !find(at, path, &where))
		return -1;
	if (where.inode < 0)
		return call_fails(ENOENT);

	const struct disk_directory *d = directory_of(where.inode);

	if (!d != !directory)
		return call_fails(directory ? ENOTDIR : EISDIR);
	for (unsigned i = 0; d && i < DISK_NAMES; i++)
		if (d->now[i] >= 0)
			return call_fails(ENOTEMPTY);
	name_set(&where, -1);
	return call_ends(0);
}

int __wrap_rmdir(const char *path)
{
	return remove_at(AT_FDCWD, path, true);
}

int __wrap_unlinkat(int at, const char *path, int flags)
{
	return remove_at(at, path, flags & AT_REMOVEDIR);
}

int __wrap_linkat(int from, const char *old, int to, const char *new, int flags)
{
	struct where a, b;

	(void)flags;
	if (call_begins("link") || !find(from, old, &a) || !find(to, new, &b))
		return -1;
	if (a.inode < 0)
		return call_fails(ENOENT);
	if (b.inode >= 0)
		return call_fails(EEXIST);
	name_set(&b, a.inode);
	return call_ends(0);
}

int __wrap_renameat(int from, const char *old, int to, const char *new)
{
	struct where a, b;

	if (call_begins("rename") || !find(from, old, &a) || !find(to, new, &b))
		return -1;
	assert_ptr_equal(a.directory, b.directory);
	if (a.inode < 0)
		return call_fails(ENOENT);
	if (a.inode == b.inode)
		return call_ends(0); /* POSIX: nothing happens */

	struct disk_change change = {.names = 2,
		.name = {(uint8_t)a.name, (uint8_t)b.name},
		.to = {-1, (int8_t)a.inode}};

	disk_change(DISK, a.directory, &change);
	return call_ends(0);
}

/* ---- directories ---- */

static DIR *new_stream(int fd)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	assert_non_null(stream);
	stream->fd = fd;
	return (DIR *)stream;
}

DIR *__wrap_fdopendir(int fd)
{
	if (call_begins("fdopendir") || !file_of(fd) || !directory_of(file_of(fd)->inode) ||
		call_ends(0) < 0)
		return NULL;
	return new_stream(fd);
}

DIR *__wrap_opendir(const char *path)
{
	int fd;

	if (!DISK)
		return __real_opendir(path);
	fd = file_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	return fd < 0 ? NULL : new_stream(fd);
}

struct dirent *__wrap_readdir(DIR *dir)
{
	struct stream *stream = (struct stream *)dir;

	if (!DISK)
		return __real_readdir(dir);
	if (call_begins("readdir"))
		return NULL;
	if (call_ends(0) < 0)
		return NULL;
	const struct disk_directory *d = directory_of(file_of(stream->fd)->inode);

	errno = 0;
	while (stream->at < DISK_NAMES && d->now[stream->at] < 0)
		stream->at++;
	if (stream->at == DISK_NAMES)
		return NULL;
	int inode = d->now[stream->at];

	snprintf(stream->entry.d_name, sizeof(stream->entry.d_name), "%s",
		disk_name_text(stream->at++));
	stream->entry.d_type = DISK->inode[inode].directory < 0 ? DT_REG : DT_DIR;
	return &stream->entry;
}

int __wrap_closedir(DIR *dir)
{
	struct stream *stream = (struct stream *)dir;

	if (!DISK)
		return __real_closedir(dir);
	int result = file_close(stream->fd);

	free(stream);
	return result;
}

/* ---- locks ---- */

/* Another process's lock that excludes this one, or NULL. */
static const struct disk_lock *rival(int inode, const struct flock *wanted)
{
	for (unsigned i = 0; i < DISK->locks; i++) {
		const struct disk_lock *lock = &DISK->lock[i];

		if (lock->process != disk_process && lock->inode == inode &&
			lock->byte == wanted->l_start &&
			(lock->exclusive || wanted->l_type == F_WRLCK))
			return lock;
	}
	return NULL;
}

static void set_lock(int inode, const struct flock *wanted)
{
	unsigned n = 0;

	for (unsigned i = 0; i < DISK->locks; i++)
		if (DISK->lock[i].process != disk_process || DISK->lock[i].inode != inode ||
			DISK->lock[i].byte != wanted->l_start)
			DISK->lock[n++] = DISK->lock[i];
	assert_true(n < DISK_LOCKS);
	if (wanted->l_type != F_UNLCK)
		DISK->lock[n++] = (struct disk_lock){
			disk_process, inode, wanted->l_start, wanted->l_type == F_WRLCK};
	DISK->locks = n;
}

int __wrap_fcntl(int fd, int command, ...)
{
	va_list list;

	va_start(list, command);

	void *argument = va_arg(list, void *);

	va_end(list);
	if (fd < FIRST_FD)
		return __real_fcntl(fd, command, argument);
	struct flock *wanted = argument;

	if (call_begins("fcntl") || !file_of(fd))
		return -1;
	const struct disk_lock *other = rival(file_of(fd)->inode, wanted);

	if (command == F_GETLK) {
		wanted->l_type = other ? F_WRLCK : F_UNLCK;
		wanted->l_pid = other ? other->process : 0;
		return call_ends(0);
	}
	assert_int_equal(command, F_SETLK);
	if (other)
		return call_fails(EAGAIN);
	set_lock(file_of(fd)->inode, wanted);
	return call_ends(0);
}
