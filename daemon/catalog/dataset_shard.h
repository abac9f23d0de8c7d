/* Opens a dataset's shard to read from it. */
#ifndef TOKEND_DATASET_SHARD_H
#define TOKEND_DATASET_SHARD_H

#include "daemon/catalog/dataset.h"

/*
 * Opens the shard for shard_read(), if it is still what was listed. @fd is @path, open, and
 * dataset_same_shard() has accepted it; in a store it is -1. The caller keeps @fd open for the life
 * of the shard, and closes it. @frames may be NULL. Blocks. On failure returns NULL; @fault is
 * without the path. FAULT_CHANGED: it is not what was listed; FAULT_DATA: it cannot be served.
 * fault->error is set if a system call failed.
 */
struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, struct fault *fault);

#endif
