/*
 * Files and directories that survive a power cut. Used for everything in state_dir. All of this
 * blocks: only the keeper's thread calls it. Faults are system calls', with errno in fault->error
 * and "NAME: strerror" as text.
 */
#ifndef TOKEND_DURABLE_H
#define TOKEND_DURABLE_H

#include "proto/fault.h"

#include <stddef.h>
#include <sys/types.h>

enum { DURABLE_NAME_BYTES = 32 }; /* of a temporary file's name, with its 0 */

/* Creates @path and everything above it, durably. */
bool durable_make_directories(const char *path, struct fault *fault);
/* Reads the whole of a small file in directory @at. Returns its length, or -1; EFBIG: it is longer
 * than @capacity. */
ssize_t durable_read_file(
	int at, const char *name, void *bytes, size_t capacity, struct fault *fault);
/* Creates file NAME in directory @at, or empties it, and fsyncs it. The caller fsyncs the
 * directory. */
bool durable_write_file(int at, const char *name, const void *bytes, size_t n, struct fault *fault);
/* fsync() of directory @at. */
bool durable_sync(int at, struct fault *fault);
/* A name for a new temporary file, ".HEX.new". */
bool durable_temporary(char name[DURABLE_NAME_BYTES], struct fault *fault);

#endif
