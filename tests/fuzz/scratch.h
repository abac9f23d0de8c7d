/* A directory in memory for the files of a target, which is removed at the end. */
#ifndef TOKEND_FUZZ_SCRATCH_H
#define TOKEND_FUZZ_SCRATCH_H

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[48] = "/dev/shm/fuzz-XXXXXX";

static inline int scratch_remove(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind;
	return at->level == 0 ? 0 : remove(path);
}

static inline void scratch_empty(void)
{
	nftw(scratch, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static void scratch_leave(void)
{
	scratch_empty();
	rmdir(scratch);
}

static inline void scratch_open(void)
{
	if (!mkdtemp(scratch)) {
		perror(scratch);
		exit(2);
	}
	atexit(scratch_leave);
}

/* Writes the file @name. Returns its path, until the next call. */
static inline const char *scratch_put(const char *name, const void *bytes, size_t n)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", scratch, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || (n > 0 && write(fd, bytes, n) != (ssize_t)n))
		abort();
	close(fd);
	return path;
}

#endif
