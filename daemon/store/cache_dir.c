/* The directory of the cache: whether it suits, and whose it is. */
#include "daemon/store/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool refuse_errno(struct fault *fault, const char *path, const char *what)
{
	int error = errno;

	return fault_errno(fault, error, "cache.dir", "%s: %s: %s", path, what, strerror(error));
}

/* The file systems of other machines: slow, and their locks are not reliable. */
static bool is_remote(int dir)
{
	static const long remote[] = {NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC,
		SMB2_SUPER_MAGIC, CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC, AFS_FS_MAGIC, V9FS_MAGIC,
		CODA_SUPER_MAGIC, 0x0BD00BD0 /* Lustre */};
	struct statfs found;

	if (fstatfs(dir, &found) != 0)
		return false;
	for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
		if ((unsigned)found.f_type == (unsigned)remote[i])
			return true;
	return false;
}

static bool judge(int dir, const char *path, uint64_t size, struct fault *fault)
{
	struct stat st;
	char name[32];
	int fd;

	if (fstat(dir, &st) != 0)
		return refuse_errno(fault, path, "cannot be examined");
	if (is_remote(dir))
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: is on a network file system; must be on a local disk", path);
	if (st.st_uid != geteuid())
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: belongs to user %u, and the daemon runs as user %u; run `chown`, or "
			"name another directory",
			path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: other users may write to it (mode %03o); run `chmod 700`", path,
			(unsigned)st.st_mode & 0777);
	if (size < (uint64_t)CACHE_LEAST_PIECES * CACHE_BLOCK)
		return fault_set(fault, FAULT_ARGUMENT, "cache.size",
			"%" PRIu64 " bytes are fewer than %d pieces", size, CACHE_LEAST_PIECES);
	snprintf(name, sizeof(name), "try.%d", (int)getpid());
	fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return refuse_errno(fault, path, "cannot create a file");
	close(fd);
	unlinkat(dir, name, 0);
	return true;
}

/* Creates the directory and judges it. Returns its descriptor, or -1 and @fault. */
static int open_directory(const char *path, uint64_t size, struct fault *fault)
{
	int dir;

	if (mkdir(path, 0700) != 0 && errno != EEXIST) {
		refuse_errno(fault, path, "cannot be created");
		return -1;
	}
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) {
		refuse_errno(fault, path, "cannot be opened");
		return -1;
	}
	if (judge(dir, path, size, fault))
		return dir;
	close(dir);
	return -1;
}

/* Writes this process's number: another daemon that is refused names it. */
static bool write_owner(int fd, const char *path, struct fault *fault)
{
	char text[24];

	snprintf(text, sizeof(text), "%d\n", (int)getpid());
	if (ftruncate(fd, 0) == 0 && pwrite(fd, text, strlen(text), 0) > 0)
		return true;
	return refuse_errno(fault, path, "cannot write its lock");
}

static bool refuse_used(int fd, const char *path, struct fault *fault)
{
	char text[24] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) > 0 && atoi(text) > 0)
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: the daemon with pid %d uses it; each daemon needs its own", path,
			atoi(text));
	return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
		"%s: another daemon uses it; each daemon needs its own", path);
}

/* The directory is locked, not the file, which somebody may remove with the rest: two daemons would
 * overwrite each other's pieces. */
static bool lock(int dir, const char *path, struct fault *fault)
{
	int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	bool locked;

	if (fd < 0)
		return refuse_errno(fault, path, "cannot create its lock");
	if (flock(dir, LOCK_EX | LOCK_NB) == 0)
		locked = write_owner(fd, path, fault);
	else if (errno != EWOULDBLOCK)
		locked = refuse_errno(fault, path, "cannot be locked");
	else
		locked = refuse_used(fd, path, fault);
	close(fd);
	return locked;
}

int cache_dir_take(const char *path, uint64_t size, struct fault *fault)
{
	int dir = open_directory(path, size, fault);

	if (dir < 0 || lock(dir, path, fault))
		return dir;
	close(dir);
	return -1;
}

bool store_cache_suits(const char *dir, uint64_t size, struct fault *fault)
{
	int fd = open_directory(dir, size, fault);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}
