/* Files that replace others whole: each is under its path complete and synced, or not at all. And
 * files that are mapped. */
#ifndef TOKEND_CTL_FILE_H
#define TOKEND_CTL_FILE_H

#include "proto/cursor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct ctl_file {
	const char *path; /* borrowed */
	char *part;	  /* its name until then, if it needs one */
	FILE *to;
};

/* False after an error was printed. Otherwise the caller writes to @to and ends it. */
bool ctl_file_begin(struct ctl_file *f, const char *path);
/* Puts it under its path; without @keep, or after a fault, drops it. False: it is not there, and if
 * it was to be, an error was printed. */
bool ctl_file_end(struct ctl_file *f, bool keep);
/* Makes a rename() to @path survive a power cut. False, with errno, if it may not. */
bool ctl_file_sync_parent(const char *path);

/*
 * Maps a regular file to read it, one at a time. NULL after an error was printed. If a read of the
 * mapping fails, because the file became shorter or its disk fails, the process prints that and
 * exits: no such read may be within malloc() or stdio.
 */
const void *ctl_map(const char *path, size_t *bytes);
void ctl_unmap(const void *mapped, size_t bytes);

/* ---- cursor files: functions that fail print a message and return false ---- */

/* Reads @path. @begin: the first cursor of the stream that @cursor must belong to, or NULL. The
 * caller calls cursor_free() after a failure, too. */
bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin);
/* Replaces @path atomically and durably. */
bool ctl_cursor_write(const struct cursor *cursor, const char *path);

#endif
