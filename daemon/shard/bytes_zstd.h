/*
 * Compressed files as a source of bytes: for bytes.c alone.
 */
#ifndef TOKEND_BYTES_ZSTD_H
#define TOKEND_BYTES_ZSTD_H

#include "daemon/shard/bytes.h"

bool zstd_recognise(const struct bytes *file);
/* Owns @file, which it closes too where it returns NULL. */
struct bytes *zstd_open(struct bytes *file, struct frames *frames, uint64_t budget_bytes, char *why,
	size_t why_bytes);

#endif
