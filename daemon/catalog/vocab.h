/*
 * Finds token ids that may not be served: those not below the stream's vocab, and negative ones of
 * signed shards that are not converted.
 */
#ifndef TOKEND_VOCAB_H
#define TOKEND_VOCAB_H

#include "daemon/catalog/dataset.h"

/*
 * Returns the index of the first of @n tokens, in served width, that may not be served, or @n. A
 * client may write to the tokens at the same time; the memory that is read depends on @n alone.
 */
uint64_t vocab_first_refused(const struct dataset *dataset, const void *tokens, uint64_t n);
/*
 * Fills @fault (FAULT_TOKEN) for token @i of @tokens, the shard's token @token, which may not be
 * served. Always false.
 */
bool vocab_refuse(const struct dataset *dataset, uint64_t token, const void *tokens, uint64_t i,
	struct fault *fault);

#endif
