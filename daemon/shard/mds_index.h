/*
 * Mosaic's index.json, in a shard's directory or its parent, lists the shards. The index and the
 * files must agree, so that a lost or a stray file does not silently change a run. Of its `hashes`
 * only xxh64 is checked, and only for small shards and for compressed ones that are decoded anyway.
 * Reading large shards would take long, and sha1 costs more than decoding.
 */
#ifndef TOKEND_SHARD_MDS_INDEX_H
#define TOKEND_SHARD_MDS_INDEX_H

#include "daemon/shard/mds_front.h"

/* Checks that each index.json lists the shard and agrees with it. Sets f->hash. False: @fault. */
bool mds_check_listed(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault);
/* Compares the XXH64 of the file, as stored, with @hash. Reads all of it. False: @fault. */
bool mds_check_hash(const struct bytes *b, uint64_t hash, struct fault *fault);

#endif
