/* Token ids that may not be served: not below the stream's vocab, or negative where they are plain
 * and signed. */
#ifndef TOKEND_VOCAB_H
#define TOKEND_VOCAB_H

#include "daemon/catalog/dataset.h"

/*
 * Returns the index of the first of @n tokens, in served width, that may not be served, or @n. The
 * tokens may change meanwhile: a client can write to them. What is read depends on @n alone.
 */
uint64_t vocab_first_refused(const struct dataset *dataset, const void *tokens, uint64_t n);
/* Fills @fault (FAULT_DATA) for token @i of @tokens, which is the shard's token @token and may not
 * be served. Always false. */
bool vocab_refuse(const struct dataset *dataset, uint64_t token, const void *tokens, uint64_t i,
	struct fault *fault);

#endif
