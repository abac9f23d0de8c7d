/*
 * Recognises files that are not shards by their first bytes, so that nobody trains on a header that
 * is read as tokens. No key of the config switches this off.
 */
#ifndef TOKEND_SHARD_FOREIGN_H
#define TOKEND_SHARD_FOREIGN_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/types.h"

/* "a Parquet file", or "an RAR archive; unpack it"; NULL: unknown content, perhaps tokens. */
const char *foreign_kind(const struct bytes *b);
/*
 * The same for a file that is to be read without a header of its own: also a shard of a format with
 * a header, under a name that does not say so. @type: of its tokens, as they would be read.
 */
const char *foreign_to_plain(const struct bytes *b, enum shard_type type);
/* Returns false, with a fault in this field. */
#define FOREIGN_FIELD "content"
bool foreign_refuse(const char *kind, struct fault *fault);

#endif
