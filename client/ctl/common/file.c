#include "client/ctl/common/file.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool ctl_file_sync_parent(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *parent =
		!slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
	int fd = parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	bool done = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	free(parent);
	return done;
}

/* mkostemp() creates files that only their owner may read. */
static bool usual_mode(int fd)
{
	mode_t mask = umask(0);

	umask(mask);
	return fchmod(fd, 0666 & ~mask) == 0;
}

static bool write_all(int fd, const char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t wrote = write(fd, bytes, n);

		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote <= 0)
			return false;
		bytes += wrote;
		n -= (size_t)wrote;
	}
	return true;
}

bool ctl_file_write(const char *path, const void *bytes, size_t n, const char *what)
{
	char *temporary = NULL;
	struct stat st;
	int fd = -1;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		ctl_fail("%s: " PHRASE_NOT_FILE "; write %s to another path", path, what);
		return false;
	}
	if (asprintf(&temporary, "%s.XXXXXX", path) < 0) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	fd = mkostemp(temporary, O_CLOEXEC);
	bool done = fd >= 0 && usual_mode(fd) && write_all(fd, bytes, n) && fsync(fd) == 0 &&
		    rename(temporary, path) == 0;
	int error = errno;

	if (fd >= 0)
		close(fd);
	if (fd >= 0 && !done)
		unlink(temporary);
	if (done && !ctl_file_sync_parent(path)) {
		error = errno;
		done = false;
	}
	free(temporary);
	if (!done)
		ctl_fail("%s: cannot be written: %s", path, strerror(error));
	return done;
}
