/*
 * Compressed files as a source of bytes.
 */
#ifndef TOKEND_SHARD_ZSTD_H
#define TOKEND_SHARD_ZSTD_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/frames.h"

/* Is the file compressed, by its first bytes or by its name (*.zst, *.zstd)? */
bool zstd_recognise(const struct bytes *file);
/* Owns @file, which it closes also when it returns NULL. As bytes_open() says. */
struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault);

#endif
