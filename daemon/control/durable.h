/*
 * Writes files and directories that survive a power cut; used for everything in state_dir. These
 * functions block, so only the keeper's thread calls them. A fault holds errno in fault->error, and
 * "NAME: strerror" as text.
 */
#ifndef TOKEND_DURABLE_H
#define TOKEND_DURABLE_H

#include "proto/fault.h"

#include <stddef.h>
#include <sys/types.h>

enum { DURABLE_NAME_BYTES = 32 }; /* a temporary file's name, with its 0 */

/* Creates directory @path, an absolute path, and its missing parents, durably. Also makes existing
 * ones durable, which a killed daemon may have created, except those in the first @durable bytes of
 * @path. */
bool durable_make_directories(const char *path, size_t durable, struct fault *fault);
/* Reads a whole file in directory @at. Returns its length, or -1. EFBIG: it is longer than
 * @capacity. */
ssize_t durable_read_file(
	int at, const char *name, void *bytes, size_t capacity, struct fault *fault);
/* Creates or overwrites file @name in directory @at, and fsyncs it. The caller fsyncs the
 * directory. */
bool durable_write_file(int at, const char *name, const void *bytes, size_t n, struct fault *fault);
/* fsync() of directory @at. */
bool durable_sync(int at, struct fault *fault);
/* Makes a random name for a temporary file, ".HEX.new". */
bool durable_temporary(char name[DURABLE_NAME_BYTES], struct fault *fault);

#endif
