#include "client/ctl/common/cursor_file.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin)
{
	char bytes[LIMIT_CURSOR_BYTES + 1];
	struct fault fault;
	FILE *file = fopen(path, "re");

	memset(cursor, 0, sizeof(*cursor));
	if (!file) {
		ctl_fail("%s: %s", path, strerror(errno));
		return false;
	}
	size_t n = fread(bytes, 1, sizeof(bytes), file);
	int error = ferror(file) ? errno : 0;

	fclose(file);
	if (error)
		ctl_fail("%s: %s", path, strerror(error));
	else if (!cursor_decode(cursor, bytes, n, &fault))
		ctl_fail("%s: %s: %s", path, fault.field, fault.text);
	else if (begin && !cursor_belongs(cursor, begin, &fault))
		ctl_fail("%s: is not a cursor of stream %s: %s: %s", path, begin->stream,
			fault.field, fault.text);
	else
		return true;
	return false;
}

/* Makes the rename() survive a power cut. */
static bool sync_parent(const char *path)
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

bool ctl_cursor_write(const struct cursor *cursor, const char *path)
{
	char bytes[LIMIT_CURSOR_BYTES], *temporary = NULL;
	size_t n = cursor_encode(cursor, bytes, sizeof(bytes));
	struct stat st;
	int fd = -1;

	if (n == 0) {
		ctl_fail("%s: the cursor is longer than %d bytes", path, LIMIT_CURSOR_BYTES);
		return false;
	}
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		ctl_fail("%s: " PHRASE_NOT_FILE "; write the cursor to another path", path);
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
	if (done && !sync_parent(path)) {
		error = errno;
		done = false;
	}
	free(temporary);
	if (!done)
		ctl_fail("%s: cannot be written: %s", path, strerror(error));
	return done;
}
