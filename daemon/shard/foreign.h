/*
 * Recognises files that are not shards by their first bytes, so that nobody trains on a header that
 * is read as tokens.
 */
#ifndef TOKEND_SHARD_FOREIGN_H
#define TOKEND_SHARD_FOREIGN_H

#include "daemon/shard/bytes.h"

/* "a Parquet file"; NULL: unknown content, perhaps tokens. */
const char *foreign_kind(const struct bytes *b);

#endif
