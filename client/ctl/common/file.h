/* A file that replaces another one whole: it is under its path complete and synced, or not at all.
 */
#ifndef TOKEND_CTL_FILE_H
#define TOKEND_CTL_FILE_H

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

#endif
