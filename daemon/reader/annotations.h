/*
 * Annotations of a window. Document starts come from the shard's index, otherwise from the eos. The
 * loss mask comes from the shard's mask, or from bounds that leave tokens out; otherwise every
 * token may be a label.
 */
#ifndef TOKEND_READER_ANNOTATIONS_H
#define TOKEND_READER_ANNOTATIONS_H

#include "daemon/catalog/dataset.h"
#include "proto/annotations.h"
#include "proto/fault.h"

/* Do annotations of this shard's windows come from files? Not all shards of a `marked` dataset have
 * such files. @shard may be NULL. */
bool annotations_in_files(const struct dataset *dataset, const struct shard *shard);

/*
 * Writes the annotations that @to requests, of the @n tokens at @tokens, which are number @token
 * and the following of their shard. @shard is open, and reading it may block; NULL if no
 * annotations come from files. False: @fault.
 */
bool annotations_write(const struct dataset *dataset, const struct shard *shard, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, struct fault *fault);

#endif
