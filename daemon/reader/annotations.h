/*
 * What is said of a window besides its tokens: where documents begin in it, by the index of its
 * shard, else by the eos; and which tokens may be labels, by masks and by bounds that leave tokens
 * out, else all of them.
 */
#ifndef TOKEND_READER_ANNOTATIONS_H
#define TOKEND_READER_ANNOTATIONS_H

#include "daemon/catalog/dataset.h"
#include "proto/annotations.h"

/* Do any of them come from files for windows of this shard? It may not, in a dataset that is
 * `marked`. */
bool annotations_in_files(const struct dataset *dataset, const struct shard *source);

/*
 * Writes what @to has room for, of @n tokens from @token on, which lie at @tokens as they are
 * served. @source is the open shard; NULL where none come from files, and then nothing blocks.
 * False: as shard_read() says.
 */
bool annotations_write(const struct dataset *dataset, const struct shard *source, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, int *error, char *why,
	size_t why_bytes);

#endif
