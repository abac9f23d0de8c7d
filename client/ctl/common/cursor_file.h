/* Cursor files. Functions that fail print a message and return false. */
#ifndef TOKEND_CTL_CURSOR_FILE_H
#define TOKEND_CTL_CURSOR_FILE_H

#include "proto/cursor.h"

/* Reads @path. @begin: the first cursor of the stream that @cursor must belong to, or NULL. The
 * caller calls cursor_free() after a failure, too. */
bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin);
/* Replaces @path atomically and durably. */
bool ctl_cursor_write(const struct cursor *cursor, const char *path);

#endif
