#include "tests/unit/disk_machine.h"

#include "tests/disk/calls.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <time.h>

enum {
	FIRST_FD = 1000,
	FDS = 64,
	WRITE_MOST = 700, /* no write() takes more: some are short */
};

struct disk_machine disk_machine;
__thread int disk_process = 1;
static struct disk_file files[FDS];

int __real_close(int fd);
int __real_fcntl(int fd, int command, ...);
int __real_fstat(int fd, struct stat *st);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
ssize_t __real_getrandom(void *to, size_t n, unsigned flags);

/* ---- what the disk's calls need ---- */

void *disk_memory(size_t n)
{
	void *at = calloc(1, n);

	assert(at);
	return at;
}

void disk_memory_free(void *at)
{
	free(at);
}

struct disk *disk_here(void)
{
	assert(disk_machine.disk);
	return disk_machine.disk;
}

bool call_begins(const char *call, const char *path, bool writes)
{
	struct disk_fault *fault = &disk_machine.fault;
	int error = errno;

	(void)writes;
	disk_machine.call = call;
	if (disk_machine.before)
		disk_machine.before(disk_machine.context);
	errno = error;
	disk_machine.calls++;
	if (fault->path && path && strstr(path, fault->path)) {
		fault->met = true;
		errno = fault->error;
		return true;
	}
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

size_t call_takes(size_t n, bool writes)
{
	return writes && n > WRITE_MOST ? WRITE_MOST : n;
}

struct disk_file *disk_file_of(int fd)
{
	if (fd < FIRST_FD || fd >= FIRST_FD + FDS || !files[fd - FIRST_FD].inode) {
		errno = EBADF;
		return NULL;
	}
	return &files[fd - FIRST_FD];
}

int disk_file_add(struct disk_inode *inode)
{
	int i = 0;

	while (i < FDS && files[i].inode)
		i++;
	assert(i < FDS);
	disk_file_begin(&files[i], inode, disk_process);
	disk_machine.open_files++;
	return FIRST_FD + i;
}

/* ---- other calls ---- */

int __wrap_close(int fd)
{
	struct disk_file *file;

	if (fd < FIRST_FD)
		return __real_close(fd);
	file = disk_file_of(fd);
	if (!file)
		return -1;

	bool fails = call_begins("close", NULL, false);

	disk_file_end(file);
	disk_machine.open_files--;
	return fails ? -1 : call_ends(0);
}

int __wrap_fstat(int fd, struct stat *st)
{
	return fd < FIRST_FD ? __real_fstat(fd, st) : disk_file_stat(fd, st);
}

int __wrap_fcntl(int fd, int command, ...)
{
	va_list list;

	va_start(list, command);

	void *argument = va_arg(list, void *);

	va_end(list);
	return fd < FIRST_FD ? __real_fcntl(fd, command, argument)
			     : disk_file_lock(fd, command, argument);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	if (!disk_machine.disk)
		return __real_nanosleep(time, left);
	call_begins("nanosleep", NULL, false);
	return 0;
}

/* Counts, so that every test can be repeated. */
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	if (!disk_machine.disk)
		return __real_getrandom(to, n, flags);
	if (call_begins("getrandom", NULL, false))
		return -1;
	assert(n == sizeof(uint64_t));
	memcpy(to, &(uint64_t){(uint64_t)disk_process << 32 | ++disk_machine.random}, n);
	return (ssize_t)n;
}

void __wrap_log_line(int level, const char *format, ...)
{
	(void)level, (void)format;
}

void __wrap_log_client(uid_t uid, int level, const char *format, ...)
{
	(void)uid, (void)level, (void)format;
}
