/*
 * Files that are not shards, recognised by their first bytes, so that nobody trains on a header
 * that is read as tokens.
 */
#ifndef TOKEND_SHARD_FOREIGN_H
#define TOKEND_SHARD_FOREIGN_H

#include "daemon/shard/bytes.h"

/* "a Parquet file", or NULL: nothing that we know. */
const char *foreign_kind(const struct bytes *b);

#endif
