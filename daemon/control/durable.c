#include "daemon/control/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Creates one directory level and makes it durable in its parent. */
static bool make_directory(const char *path)
{
	char parent[PATH_MAX];
	char *slash;
	int fd, error;

	if (mkdir(path, 0755) < 0)
		return errno == EEXIST;
	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (!slash || slash == parent)
		return true;
	*slash = 0;
	fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return false;
	error = fsync(fd) < 0 ? errno : 0;
	close(fd);
	if (error) /* or the next one would find it there and take it for durable */
		rmdir(path);
	errno = error;
	return error == 0;
}

bool durable_make_directories(const char *path)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (!make_directory(part))
			return false;
		*p = '/';
	}
	return make_directory(part);
}

ssize_t durable_read_file(int at, const char *name, void *bytes, size_t capacity)
{
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	size_t have = 0;
	ssize_t n = 0;
	char more;

	if (fd < 0)
		return -1;
	while (have < capacity && (n = read(fd, (char *)bytes + have, capacity - have)) > 0)
		have += (size_t)n;
	if (n >= 0 && have == capacity && (n = read(fd, &more, 1)) == 1) {
		errno = EFBIG;
		n = -1;
	}
	int error = errno;

	close(fd);
	errno = error;
	return n < 0 ? -1 : (ssize_t)have;
}

bool durable_write_file(int at, const char *name, const void *bytes, size_t n)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	const char *p = bytes;
	bool ok = fd >= 0;

	while (ok && n > 0) {
		ssize_t done = write(fd, p, n);

		if (done < 0 && errno == EINTR)
			continue;
		ok = done >= 0;
		p += ok ? done : 0;
		n -= ok ? (size_t)done : 0;
	}
	ok = ok && fsync(fd) == 0;

	int error = errno;

	if (fd >= 0 && close(fd) < 0 && ok) {
		ok = false;
		error = errno;
	}
	errno = error;
	return ok;
}

bool durable_temporary(char name[DURABLE_NAME_BYTES])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return false;
	snprintf(name, DURABLE_NAME_BYTES, ".%016" PRIx64 ".new", random);
	return true;
}
