/* Opens a dataset's shard to read from it. */
#ifndef TOKEND_DATASET_SHARD_H
#define TOKEND_DATASET_SHARD_H

#include "daemon/catalog/dataset.h"

/*
 * Opens the shard to read from with shard_read(), if it is what was listed. @fd is @path, open, and
 * dataset_same_shard() has accepted it; it stays the caller's and must outlive the shard. @frames
 * may be NULL. NULL: @why, and errno is what reading failed with, or 0 where the shard is at fault.
 * Blocks.
 */
struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, char *why, size_t why_bytes);

#endif
