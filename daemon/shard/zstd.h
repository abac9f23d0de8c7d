/* zstd-compressed files as a source of bytes. */
#ifndef TOKEND_SHARD_ZSTD_H
#define TOKEND_SHARD_ZSTD_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/frames.h"

/* Whether the file is compressed, by its first bytes or its name (*.zst, *.zstd). */
bool zstd_recognise(const struct bytes *file);
/* As bytes_open(). Takes @file over, and closes it on failure too. */
struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault);

#endif
