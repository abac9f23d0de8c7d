/* Small files in a directory of a test's own. */
#ifndef TEST_FILES_H
#define TEST_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct files {
	char directory[64];
	char path[128]; /* the file made last */
};

static inline int files_set_up(void **state)
{
	struct files *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	const char *tmp = getenv("TMPDIR");
	int n = snprintf(
		f->directory, sizeof(f->directory), "%s/tokend-shard-XXXXXX", tmp ? tmp : "/tmp");

	assert_true(n < (int)sizeof(f->directory));
	assert_non_null(mkdtemp(f->directory));
	*state = f;
	return 0;
}

static inline int files_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static inline int files_tear_down(void **state)
{
	struct files *f = *state;

	nftw(f->directory, files_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(f);
	return 0;
}

static inline const char *files_path(struct files *f, const char *name)
{
	snprintf(f->path, sizeof(f->path), "%s/%s", f->directory, name);
	return f->path;
}

/* Makes a file @name of @n bytes. */
static inline const char *files_put(struct files *f, const char *name, const void *bytes, size_t n)
{
	int fd = open(files_path(f, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	assert_int_equal(close(fd), 0);
	return f->path;
}

#endif
