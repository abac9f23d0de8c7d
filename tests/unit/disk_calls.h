/* What the files of the disk's calls share. */
#ifndef TEST_DISK_CALLS_H
#define TEST_DISK_CALLS_H

#include "tests/unit/disk_model.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DISK (disk_machine.disk)

enum { FIRST_FD = 1000 };

struct file {
	int inode; /* -1: free */
	int process;
	size_t at;
};

/* Where a name is: its directory, and its number. */
struct where {
	struct disk_directory *directory;
	unsigned name;
	int inode; /* or -1 */
};

/* Counts a call. True: it fails now, with errno. */
bool call_begins(const char *call);
/* The result of a call that had its effect. */
int call_ends(int result);
int call_fails(int error);

/* NULL with EBADF. */
struct file *file_of(int fd);
int file_open(int at, const char *path, int flags);
int file_close(int fd);
/* NULL with errno. */
struct disk_directory *directory_of(int inode);
/* False with errno: no such directory. */
bool find(int at, const char *path, struct where *where);
/* The name becomes one of @inode, or of none (-1). */
void name_set(const struct where *where, int inode);

#endif
