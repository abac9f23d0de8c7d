/*
 * File calls on a disk in memory. The linker passes these calls of all linked objects here
 * (--wrap). The program has the descriptors, and the calls that are not only for files: close()
 * and fstat().
 */
#ifndef TEST_DISK_CALLS_H
#define TEST_DISK_CALLS_H

#include "tests/disk/model.h"

#include <fcntl.h>
#include <sys/stat.h>

struct disk_file {
	struct disk_inode *inode;
	size_t at;
};

/* ---- of the program ---- */

/* The disk of the caller. */
struct disk *disk_here(void);
/* The beginning of a call, on @path or on a descriptor (NULL). True: it fails now, with errno. */
bool call_begins(const char *call, const char *path, bool writes);
/* The result of a call that had its effect. */
int call_ends(int result);
/* How many of @n bytes a call reads or writes. */
size_t call_takes(size_t n, bool writes);
/* NULL with errno. */
struct disk_file *disk_file_of(int fd);
/* A descriptor, or -1 with errno. */
int disk_file_add(struct disk_inode *inode);

/* ---- for the program ---- */

void disk_file_begin(struct disk_file *file, struct disk_inode *inode);
void disk_file_end(struct disk_file *file);
int disk_file_stat(int fd, struct stat *st);

#endif
