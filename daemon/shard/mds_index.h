/*
 * Mosaic's index.json, in a shard's directory or its parent, lists the shards. The index and the
 * files must agree, so that a lost, a stray or a rewritten file does not silently change a run.
 */
#ifndef TOKEND_SHARD_MDS_INDEX_H
#define TOKEND_SHARD_MDS_INDEX_H

#include "daemon/shard/format.h"

/*
 * The indexes of a dataset, in or below the directory @root. Each is read once, so that all shards
 * see the same contents. NULL: out of memory.
 */
struct mds_indexes *mds_indexes_new(const char *root);
void mds_indexes_free(struct mds_indexes *indexes); /* NULL: does nothing */
/*
 * Checks that an index lists the shard, with its size and number of samples, and that all shards
 * that it lists exist. A directory without an index is not checked. Any thread. False: @fault.
 */
bool mds_check_listed(const struct bytes *b, const struct shard_hint *hint, uint64_t samples,
	struct fault *fault);

#endif
