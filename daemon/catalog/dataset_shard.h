/* Opens a dataset's shard to read from it. */
#ifndef TOKEND_DATASET_SHARD_H
#define TOKEND_DATASET_SHARD_H

#include "daemon/catalog/dataset.h"

/*
 * Opens the shard to read from with shard_read(), if it is what was listed. @fd is @path, open, and
 * dataset_same_shard() has accepted it; it stays the caller's and must outlive the shard. @frames
 * may be NULL. Blocks. NULL: @fault, without the path. FAULT_CHANGED: it is not what was listed;
 * FAULT_DATA: it cannot be served; with fault->error where a system call failed.
 */
struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, struct fault *fault);

#endif
