#include "tests/fuzz/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = 3 };

static const int errors[] = {EIO, ENOSPC, EINTR};

static _Atomic int allocation, call; /* how many are still to succeed, plus one; 0: all do */
static atomic_bool happened;
static unsigned kind;
static _Atomic int change; /* likewise, of reads */
static size_t change_at;
static uint8_t change_bits;

void fail_plan(const uint8_t plan[FAIL_BYTES])
{
	happened = false;
	allocation = plan[0];
	call = plan[1] % 64;
	kind = plan[1] / 64;
}

void fail_change(const uint8_t plan[CHANGE_BYTES])
{
	change = plan[0];
	change_at = (size_t)plan[1] << 8 | plan[2];
	change_bits = plan[3];
}

bool fail_end(void)
{
	allocation = call = change = 0;
	return happened;
}

bool fail_happened(void)
{
	return happened;
}

static bool now(_Atomic int *count)
{
	int left = *count;

	do /* several threads may count, and another may end the plan */
		if (left <= 0)
			return false;
	while (!atomic_compare_exchange_weak(count, &left, left - 1));
	if (left > 1)
		return false;
	happened = true;
	return true;
}

static bool no_memory(void)
{
	if (!now(&allocation))
		return false;
	errno = ENOMEM;
	return true;
}

/* True: the call fails with errno. */
static bool no_file(void)
{
	if (!now(&call))
		return false;
	errno = errors[kind == SHORT ? 0 : kind];
	return true;
}

/* Bytes to transfer of @n; -1: fails with errno. */
static ssize_t part(size_t n)
{
	if (!now(&call))
		return (ssize_t)n;
	if (kind == SHORT)
		return (ssize_t)(n / 2);
	errno = errors[kind];
	return -1;
}

#define WRAP(type, name, fails, failure, parameters, arguments)                                    \
	type __real_##name parameters;                                                             \
	type __wrap_##name parameters;                                                             \
	type __wrap_##name parameters                                                              \
	{                                                                                          \
		return fails ? (failure) : __real_##name arguments;                                \
	}

WRAP(void *, malloc, no_memory(), NULL, (size_t n), (n))
WRAP(void *, calloc, no_memory(), NULL, (size_t n, size_t each), (n, each))
WRAP(void *, realloc, no_memory(), NULL, (void *at, size_t n), (at, n))
WRAP(char *, strdup, no_memory(), NULL, (const char *text), (text))
WRAP(char *, strndup, no_memory(), NULL, (const char *text, size_t n), (text, n))
WRAP(void *, mmap, no_memory(), MAP_FAILED,
	(void *at, size_t n, int protection, int flags, int fd, off_t offset),
	(at, n, protection, flags, fd, offset))
WRAP(FILE *, fopen, no_file(), NULL, (const char *path, const char *mode), (path, mode))
WRAP(DIR *, opendir, no_file(), NULL, (const char *path), (path))
WRAP(int, fstat, no_file(), -1, (int fd, struct stat *st), (fd, st))
WRAP(int, fsync, no_file(), -1, (int fd), (fd))
WRAP(int, renameat, no_file(), -1, (int from, const char *a, int to, const char *b),
	(from, a, to, b))
WRAP(int, linkat, no_file(), -1, (int from, const char *a, int to, const char *b, int flags),
	(from, a, to, b, flags))
WRAP(int, mkdirat, no_file(), -1, (int at, const char *path, mode_t mode), (at, path, mode))

#define WRAP_MODE(name, parameters, arguments)                                                     \
	int __real_##name parameters;                                                              \
	int __wrap_##name parameters;                                                              \
	int __wrap_##name parameters                                                               \
	{                                                                                          \
		va_list more;                                                                      \
                                                                                                   \
		va_start(more, flags);                                                             \
		mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                          \
		va_end(more);                                                                      \
		return no_file() ? -1 : __real_##name arguments;                                   \
	}

WRAP_MODE(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_MODE(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* What a read returns. */
static ssize_t changed(void *to, ssize_t n)
{
	if (n > 0 && now(&change))
		((uint8_t *)to)[change_at % (size_t)n] ^= change_bits;
	return n;
}

#define WRAP_TRANSFER(name, parameters, result, arguments)                                         \
	ssize_t __real_##name parameters;                                                          \
	ssize_t __wrap_##name parameters;                                                          \
	ssize_t __wrap_##name parameters                                                           \
	{                                                                                          \
		ssize_t some = part(n);                                                            \
                                                                                                   \
		return some < 0 ? -1 : result(__real_##name arguments);                            \
	}
#define READ(n) changed(to, n)

WRAP_TRANSFER(read, (int fd, void *to, size_t n), READ, (fd, to, (size_t)some))
WRAP_TRANSFER(pread, (int fd, void *to, size_t n, off_t at), READ, (fd, to, (size_t)some, at))
WRAP_TRANSFER(write, (int fd, const void *from, size_t n), , (fd, from, (size_t)some))

ssize_t __real_preadv2(int fd, const struct iovec *part, int parts, off_t at, int flags);
ssize_t __wrap_preadv2(int fd, const struct iovec *part, int parts, off_t at, int flags);
ssize_t __wrap_preadv2(int fd, const struct iovec *to, int parts, off_t at, int flags)
{
	struct iovec some = to[0];

	if (parts != 1)
		return no_file() ? -1 : __real_preadv2(fd, to, parts, at, flags);
	ssize_t n = part(some.iov_len);

	some.iov_len = (size_t)n;
	return n < 0 ? -1 : changed(some.iov_base, __real_preadv2(fd, &some, 1, at, flags));
}

int __wrap_asprintf(char **to, const char *format, ...);
int __wrap_asprintf(char **to, const char *format, ...)
{
	va_list more;

	if (no_memory()) {
		*to = NULL;
		return -1;
	}
	va_start(more, format);
	int n = vasprintf(to, format, more);

	va_end(more);
	return n;
}
