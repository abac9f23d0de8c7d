/*
 * The system calls of a mounted disk (disk_model.h). The linker passes these calls of all linked
 * objects here (--wrap); without a mounted disk they are the real ones. Descriptors of the disk
 * begin at FIRST_FD, so others may be used meanwhile.
 */
#include "tests/unit/disk_calls.h"

#include <sys/random.h>
#include <time.h>

enum {
	FDS = 64,
	WRITE_MOST = 700, /* no write() takes more: some are short */
	LOG_BYTES = 1 << 14,
};

struct disk_machine disk_machine;
__thread int disk_process = 1;
static struct file files[FDS];
static bool files_ready;
static char logged[LOG_BYTES];

int __real_open(const char *path, int flags, ...);
int __real_openat(int at, const char *path, int flags, ...);
ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __real_write(int fd, const void *from, size_t n);
int __real_close(int fd);
int __real_fsync(int fd);
int __real_stat(const char *path, struct stat *st);
int __real_fstat(int fd, struct stat *st);
int __real_access(const char *path, int mode);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
ssize_t __real_getrandom(void *to, size_t n, unsigned flags);

/* ---- each call ---- */

bool call_begins(const char *call)
{
	struct disk_fault *fault = &disk_machine.fault;

	int error = errno;

	disk_machine.call = call;
	if (disk_machine.before)
		disk_machine.before(disk_machine.context);
	errno = error;
	disk_machine.calls++;
	if (disk_machine.calls != fault->call)
		return false;
	fault->met = true;
	fault->name = call;
	errno = fault->error;
	return !fault->late;
}

int call_ends(int result)
{
	const struct disk_fault *fault = &disk_machine.fault;

	if (disk_machine.calls != fault->call || !fault->late || !fault->met || result < 0)
		return result;
	errno = fault->error;
	return -1;
}

int call_fails(int error)
{
	errno = error;
	return -1;
}

struct file *file_of(int fd)
{
	if (fd < FIRST_FD || fd >= FIRST_FD + FDS || files[fd - FIRST_FD].inode < 0) {
		errno = EBADF;
		return NULL;
	}
	return &files[fd - FIRST_FD];
}

static int new_file(int inode)
{
	int i = 0;

	for (int f = 0; !files_ready && f < FDS; f++)
		files[f].inode = -1;
	files_ready = true;
	while (i < FDS && files[i].inode >= 0)
		i++;
	assert_true(i < FDS);
	files[i] = (struct file){inode, disk_process, 0};
	disk_machine.open_files++;
	return FIRST_FD + i;
}

struct disk_directory *directory_of(int inode)
{
	int index = inode < 0 ? -1 : DISK->inode[inode].directory;

	errno = inode < 0 ? ENOENT : ENOTDIR;
	return index < 0 ? NULL : &DISK->directory[index];
}

/* ---- paths ---- */

bool find(int at, const char *path, struct where *where)
{
	char parent[512];
	const char *slash = strrchr(path, '/');
	int inode;

	assert_true(*path == '/' || at >= FIRST_FD);
	if (disk_machine.fault.path && strstr(path, disk_machine.fault.path)) {
		disk_machine.fault.met = true;
		errno = disk_machine.fault.error;
		return false;
	}
	if (*path == '/') {
		snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
		inode = disk_find(DISK, parent);
		path = slash + 1;
	} else {
		assert_null(slash);
		inode = file_of(at) ? file_of(at)->inode : -1;
	}
	where->directory = directory_of(inode);
	if (!where->directory)
		return false;
	if (!*path || strcmp(path, ".") == 0) {
		where->inode = inode;
		return true;
	}
	where->name = disk_name(path);
	where->inode = where->directory->now[where->name];
	return true;
}

void name_set(const struct where *where, int inode)
{
	struct disk_change change = {
		.names = 1, .name = {(uint8_t)where->name}, .to = {(int8_t)inode}};

	disk_change(DISK, where->directory, &change);
}

/* ---- files ---- */

int file_open(int at, const char *path, int flags)
{
	struct where where;

	if (call_begins("open"))
		return -1;
	if (!find(at, path, &where))
		return -1;
	if (where.inode < 0 && !(flags & O_CREAT))
		return call_fails(ENOENT);
	if (where.inode >= 0 && (flags & O_EXCL))
		return call_fails(EEXIST);
	if (where.inode < 0) {
		where.inode = disk_add_inode(DISK, false);
		name_set(&where, where.inode);
	}
	if ((flags & O_DIRECTORY) && !directory_of(where.inode))
		return -1;
	if (flags & O_TRUNC) {
		disk_blob_use(&DISK->inode[where.inode].now, disk_blob("", 0));
		DISK->version++;
	}
	return call_ends(0) < 0 ? -1 : new_file(where.inode);
}

static mode_t mode_of(int flags, va_list list)
{
	return flags & O_CREAT ? va_arg(list, mode_t) : 0;
}

int __wrap_open(const char *path, int flags, ...)
{
	va_list list;

	va_start(list, flags);

	mode_t mode = mode_of(flags, list);

	va_end(list);
	return DISK ? file_open(AT_FDCWD, path, flags) : __real_open(path, flags, mode);
}

int __wrap_openat(int at, const char *path, int flags, ...)
{
	va_list list;

	va_start(list, flags);

	mode_t mode = mode_of(flags, list);

	va_end(list);
	return DISK ? file_open(at, path, flags) : __real_openat(at, path, flags, mode);
}

ssize_t __wrap_read(int fd, void *to, size_t n)
{
	struct file *file;

	if (fd < FIRST_FD)
		return __real_read(fd, to, n);
	file = file_of(fd);
	if (call_begins("read") || !file)
		return -1;
	if (directory_of(file->inode))
		return call_fails(EISDIR);

	const struct disk_blob *blob = DISK->inode[file->inode].now;
	size_t left = blob->n > file->at ? blob->n - file->at : 0;

	n = n < left ? n : left;
	memcpy(to, blob->at + file->at, n);
	file->at += n;
	return call_ends(0) < 0 ? -1 : (ssize_t)n;
}

/* Writes at most @n bytes at the descriptor's position. */
static ssize_t write_some(struct file *file, const void *from, size_t n)
{
	struct disk_inode *inode = &DISK->inode[file->inode];
	const struct disk_blob *old = inode->now;
	size_t end = file->at + n;
	struct disk_blob *blob;

	assert_true(file->at <= old->n);
	blob = disk_blob(old->at, old->n);
	if (end > old->n) {
		blob = realloc(blob, sizeof(*blob) + end);
		assert_non_null(blob);
		blob->n = end;
	}
	memcpy(blob->at + file->at, from, n);
	disk_blob_use(&inode->now, blob);
	DISK->retried += inode->failed;
	DISK->version++;
	file->at = end;
	return (ssize_t)n;
}

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
	struct file *file;

	if (fd < FIRST_FD)
		return __real_write(fd, from, n);
	file = file_of(fd);
	if (call_begins("write") || !file)
		return -1;
	n = write_some(file, from, n < WRITE_MOST ? n : WRITE_MOST);
	return call_ends(0) < 0 ? -1 : (ssize_t)n;
}

int file_close(int fd)
{
	struct file *file = file_of(fd);
	unsigned n = 0;

	if (!file)
		return -1;

	bool fault = call_begins("close");

	/* As POSIX has it: the process's locks of this file are gone. */
	for (unsigned i = 0; i < DISK->locks; i++)
		if (DISK->lock[i].process != file->process || DISK->lock[i].inode != file->inode)
			DISK->lock[n++] = DISK->lock[i];
	DISK->locks = n;
	file->inode = -1;
	disk_machine.open_files--;
	return fault ? -1 : call_ends(0);
}

int __wrap_close(int fd)
{
	return fd < FIRST_FD ? __real_close(fd) : file_close(fd);
}

int __wrap_fsync(int fd)
{
	struct file *file;

	if (fd < FIRST_FD)
		return __real_fsync(fd);
	file = file_of(fd);

	bool fault = call_begins("fsync");

	if (!file)
		return -1;
	fault |= call_ends(0) < 0;
	disk_sync(DISK, &DISK->inode[file->inode], fault);
	return fault ? call_fails(disk_machine.fault.error) : 0;
}

static int describe(int inode, struct stat *st)
{
	if (inode < 0)
		return call_fails(ENOENT);
	*st = (struct stat){.st_ino = (ino_t)inode + 1,
		.st_dev = 1,
		.st_mode = DISK->inode[inode].directory < 0 ? S_IFREG | 0600 : S_IFDIR | 0755,
		.st_nlink = 1,
		.st_uid = geteuid(),
		.st_size = (off_t)DISK->inode[inode].now->n};
	return 0;
}

int __wrap_fstat(int fd, struct stat *st)
{
	if (fd < FIRST_FD)
		return __real_fstat(fd, st);
	if (call_begins("fstat") || !file_of(fd))
		return -1;
	return call_ends(describe(file_of(fd)->inode, st));
}

int __wrap_fstatat(int at, const char *path, struct stat *st, int flags)
{
	struct where where;

	(void)flags;
	if (call_begins("fstatat") || !find(at, path, &where))
		return -1;
	return call_ends(describe(where.inode, st));
}

int __wrap_stat(const char *path, struct stat *st)
{
	struct where where;

	if (!DISK)
		return __real_stat(path, st);
	if (call_begins("stat") || !find(AT_FDCWD, path, &where))
		return -1;
	return call_ends(describe(where.inode, st));
}

int __wrap_access(const char *path, int mode)
{
	struct where where;

	if (!DISK)
		return __real_access(path, mode);
	if (call_begins("access") || !find(AT_FDCWD, path, &where))
		return -1;
	return call_ends(where.inode < 0 ? call_fails(ENOENT) : 0);
}

int __wrap_fchmod(int fd, mode_t mode)
{
	(void)mode;
	return call_begins("fchmod") || !file_of(fd) ? -1 : call_ends(0);
}

int __wrap_fchown(int fd, uid_t uid, gid_t gid)
{
	(void)uid, (void)gid;
	return call_begins("fchown") || !file_of(fd) ? -1 : call_ends(0);
}

/* ---- the rest ---- */

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	if (!DISK)
		return __real_nanosleep(time, left);
	call_begins("nanosleep");
	return 0;
}

/* Counts, so that every test can be repeated. */
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	if (!DISK)
		return __real_getrandom(to, n, flags);
	if (call_begins("getrandom"))
		return -1;
	assert_true(n == sizeof(uint64_t));
	memcpy(to, &(uint64_t){(uint64_t)disk_process << 32 | ++disk_machine.random}, n);
	return (ssize_t)n;
}

static void add_line(const char *format, va_list list)
{
	size_t used = strlen(logged);

	if (used + 1024 > LOG_BYTES)
		used = 0;
	vsnprintf(logged + used, 1024, format, list);
	strcat(logged, "\n");
}

void __wrap_log_line(int level, const char *format, ...)
{
	va_list list;

	(void)level;
	va_start(list, format);
	add_line(format, list);
	va_end(list);
}

void __wrap_log_client(uid_t uid, int level, const char *format, ...)
{
	va_list list;

	(void)uid, (void)level;
	va_start(list, format);
	add_line(format, list);
	va_end(list);
}

bool disk_logged(const char *text)
{
	return strstr(logged, text);
}

void disk_forget_log(void)
{
	logged[0] = 0;
}
