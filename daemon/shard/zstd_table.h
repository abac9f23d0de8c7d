/*
 * Where the frames of a compressed file lie: from the seek table at its end (zstd's
 * contrib/seekable_format), or without one by a walk from block to block. A table is not trusted:
 * its entries must make up the file, and some frames' own headers must agree with it.
 */
#ifndef TOKEND_SHARD_ZSTD_TABLE_H
#define TOKEND_SHARD_ZSTD_TABLE_H

#include "daemon/shard/zstd_decode.h"

/* Does the file end as a seek table does? */
bool zstd_has_table(const struct bytes *file);
/* Fills s->frame, count, has_checksums and bytes.frame_bytes. False: @fault. */
bool zstd_find_frames(struct zstd_source *s, struct fault *fault);

#endif
