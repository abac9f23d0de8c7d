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

static bool failed(const char *name, int error, struct fault *fault)
{
	return fault_errno(fault, error, "state_dir", "%s: %s", name, strerror(error));
}

bool durable_sync(int at, struct fault *fault)
{
	return fsync(at) == 0 || failed("directory", errno, fault);
}

/* Makes what was created in the directory of @path durable. */
static bool sync_parent(const char *path, struct fault *fault)
{
	char parent[PATH_MAX];
	char *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (!slash || slash == parent)
		return true;
	*slash = 0;

	int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return failed(parent, errno, fault);

	bool ok = fsync(fd) == 0 || failed(parent, errno, fault);

	close(fd);
	if (!ok) /* otherwise the next caller would find it and take it for durable */
		rmdir(path);
	return ok;
}

/* Creates one directory level and makes it durable in its parent. */
static bool make_directory(const char *path, struct fault *fault)
{
	if (mkdir(path, 0755) == 0)
		return sync_parent(path, fault);
	return errno == EEXIST || failed(path, errno, fault);
}

bool durable_make_directories(const char *path, struct fault *fault)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (!make_directory(part, fault))
			return false;
		*p = '/';
	}
	return make_directory(part, fault);
}

ssize_t durable_read_file(
	int at, const char *name, void *bytes, size_t capacity, struct fault *fault)
{
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	size_t have = 0;
	ssize_t n = 0;
	char more;

	if (fd < 0) {
		failed(name, errno, fault);
		return -1;
	}
	while (have < capacity && (n = read(fd, (char *)bytes + have, capacity - have)) > 0)
		have += (size_t)n;
	if (n < 0)
		failed(name, errno, fault);
	if (n >= 0 && have == capacity && read(fd, &more, 1) == 1) {
		failed(name, EFBIG, fault);
		n = -1;
	}
	close(fd);
	return n < 0 ? -1 : (ssize_t)have;
}

bool durable_write_file(int at, const char *name, const void *bytes, size_t n, struct fault *fault)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	const char *p = bytes;

	if (fd < 0)
		return failed(name, errno, fault);
	while (n > 0) {
		ssize_t done = write(fd, p, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			break;
		p += done;
		n -= (size_t)done;
	}

	bool ok = (n == 0 && fsync(fd) == 0) || failed(name, errno, fault);

	if (close(fd) < 0 && ok)
		ok = failed(name, errno, fault);
	return ok;
}

bool durable_temporary(char name[DURABLE_NAME_BYTES], struct fault *fault)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return failed("getrandom", errno, fault);
	snprintf(name, DURABLE_NAME_BYTES, ".%016" PRIx64 ".new", random);
	return true;
}
