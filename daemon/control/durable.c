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

static bool sync_directory(const char *path, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return failed(path, errno, fault);

	bool ok = fsync(fd) == 0 || failed(path, errno, fault);

	close(fd);
	return ok;
}

/* Makes the existing directory @path durable in @parent: the daemon that made it may have been
 * killed before it did so. We cannot have made it in a directory that we may not read, or that
 * cannot be synced. */
static bool sync_existing(const char *parent, struct fault *fault)
{
	return sync_directory(parent, fault) || fault->error == EACCES || fault->error == EINVAL ||
	       fault->error == EROFS;
}

/* Creates one directory level, durably. @sync: an existing one may not be durable. */
static bool make_directory(const char *path, bool sync, struct fault *fault)
{
	char parent[PATH_MAX];
	char *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	slash[slash == parent] = 0;
	if (mkdir(path, 0755) < 0) {
		if (errno != EEXIST)
			return failed(path, errno, fault);
		return !sync || sync_existing(parent, fault);
	}
	if (sync_directory(parent, fault))
		return true;
	rmdir(path); /* otherwise the next caller would find it and take it for durable */
	return false;
}

bool durable_make_directories(const char *path, size_t durable, struct fault *fault)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (!make_directory(part, strlen(part) > durable, fault))
			return false;
		*p = '/';
	}
	return make_directory(part, strlen(part) > durable, fault);
}

ssize_t durable_read_file(
	int at, const char *name, void *bytes, size_t capacity, struct fault *fault)
{
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	size_t have = 0;
	ssize_t n = 0;
	struct stat st;
	char more;

	if (fd < 0) {
		failed(name, errno, fault);
		return -1;
	}
	if (fstat(fd, &st) < 0)
		n = -1;
	else if (!S_ISREG(st.st_mode)) { /* a FIFO would wait for its writer */
		close(fd);
		fault_errno(fault, EINVAL, "state_dir", "%s: not a regular file", name);
		return -1;
	}
	while (n >= 0 && have < capacity &&
		(n = read(fd, (char *)bytes + have, capacity - have)) > 0)
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
