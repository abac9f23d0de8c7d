/*
 * Cursors from and to files. Errors are printed.
 */
#ifndef TOKEND_CTL_CURSOR_FILE_H
#define TOKEND_CTL_CURSOR_FILE_H

#include "proto/cursor.h"

/* @begin: the first cursor of the stream that it must belong to, or NULL. The caller calls
 * cursor_free() either way. */
bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin);
/* Replaces @path atomically and durably. */
bool ctl_cursor_write(const struct cursor *cursor, const char *path);

#endif
