/*
 * Annotations of a window: where documents begin in it, by the index of its shard, otherwise by the
 * eos; and which tokens may be labels, by masks and by bounds that leave tokens out, otherwise all
 * of them.
 */
#ifndef TOKEND_READER_ANNOTATIONS_H
#define TOKEND_READER_ANNOTATIONS_H

#include "daemon/catalog/dataset.h"
#include "proto/annotations.h"
#include "proto/fault.h"

/* Do any of them come from files for windows of this shard? It may not, in a dataset that is
 * `marked`. */
bool annotations_in_files(const struct dataset *dataset, const struct shard *shard);

/*
 * Writes what @to has room for, of @n tokens from @token on, which are at @tokens as they are
 * served. @shard is open; NULL where no annotations come from files, and then nothing blocks.
 * False: @fault.
 */
bool annotations_write(const struct dataset *dataset, const struct shard *shard, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, struct fault *fault);

#endif
