/* Files that replace others whole. */
#ifndef TOKEND_CTL_FILE_H
#define TOKEND_CTL_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Replaces the file at @path atomically and durably. @what names the contents in a message. False
 * after an error was printed. */
bool ctl_file_write(const char *path, const void *bytes, size_t n, const char *what);
/* Makes a rename() to @path survive a power cut. False, with errno, if it may not. */
bool ctl_file_sync_parent(const char *path);

#endif
