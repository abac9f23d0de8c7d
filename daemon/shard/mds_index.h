/*
 * Mosaic's index.json, in a shard's directory or the one above: it lists the shards. It is compared
 * with the files and the other way round, so that a lost or a stray file is found before a training
 * goes differently. Of its `hashes` only xxh64 is used: of a compressed shard when that is about to
 * be decoded whole, and of a small one. Large ones are not read whole for it, and sha1 would cost
 * more than the decoding.
 */
#ifndef TOKEND_SHARD_MDS_INDEX_H
#define TOKEND_SHARD_MDS_INDEX_H

#include "daemon/shard/mds_front.h"

/* Every index.json that there is must list the shard, and as it is. */
bool mds_check_listed(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault);
/* The XXH64 of the file as it lies: it is read whole. */
bool mds_check_hash(const struct bytes *b, uint64_t hash, struct fault *fault);

#endif
