/*
 * Finds the frames of a compressed file: from the seek table at its end (zstd's
 * contrib/seekable_format), or without one by a walk over all blocks. A table is not trusted: its
 * frames must fill the file, and the headers of a sample of frames must agree with it.
 */
#ifndef TOKEND_SHARD_ZSTD_TABLE_H
#define TOKEND_SHARD_ZSTD_TABLE_H

#include "daemon/shard/zstd_decode.h"

/* Whether the file ends with a seek table's magic. */
bool zstd_has_table(const struct bytes *file);
/* Fills s->frame, count, has_checksums and bytes.frame_bytes. False: @fault. */
bool zstd_find_frames(struct zstd_source *s, struct fault *fault);

#endif
