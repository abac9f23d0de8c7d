/* Whether a dataset is still what its path or manifest holds. */
#ifndef TOKEND_CURRENT_H
#define TOKEND_CURRENT_H

#include "daemon/catalog/dataset.h"

/*
 * Compares the names of the shards, and size, inode and mtime of each, with the list; a manifest
 * by its own size, inode and mtime. One stat() a shard; nothing is opened. False: @fault says what
 * differs. True for what cannot be looked at now, and for a dataset in a store, whose ETags are
 * compared when it is read. Blocks.
 */
bool dataset_current(
	const struct config *config, const struct dataset *dataset, struct fault *fault);

#endif
