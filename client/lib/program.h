/* The directories of the programs tokend and tokctl. */
#ifndef TOKEND_PROGRAM_H
#define TOKEND_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the path of program @name to @path. False if there is none, or it needs more than @bytes.
 */
bool program_find(const char *name, char *path, size_t bytes);

#endif
