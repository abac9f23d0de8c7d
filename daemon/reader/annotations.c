#include "daemon/reader/annotations.h"

#include "daemon/reader/documents.h"
#include "daemon/reader/state.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

bool annotations_in_files(const struct dataset *d, const struct shard *shard)
{
	if (!shard)
		return false;
	return (d->hint.documents && shard->facts.documents != SHARD_UNKNOWN) ||
	       (d->hint.loss_mask && (shard->mask || shard->bounds));
}

/* A window that is a sample has document starts only by the eos. */
static bool write_documents(const struct dataset *d, const struct shard *shard, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, struct fault *fault)
{
	uint32_t count = 0;

	if (shard && shard->facts.documents != SHARD_UNKNOWN)
		count = shard_documents(shard, token, n, to->start, (uint32_t)n);
	else if (d->has_eos)
		count = documents_find(to->start, tokens, (uint32_t)n, d->token_bytes, d->eos);
	else if (d->sample_tokens == 0)
		return fault_set(fault, FAULT_DATA, "",
			"the ends of its documents are unknown: it has no index, and the stream "
			"has no eos; set eos, the token that ends a document");
	assert(count <= n);
	*to->count = count;
	return true;
}

bool annotations_write(const struct dataset *d, const struct shard *shard, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, struct fault *fault)
{
	assert(n > 0 && n <= UINT32_MAX && !to->count == !to->start);
	if (to->count && !write_documents(d, shard, token, n, tokens, to, fault))
		return false;
	if (to->loss_mask && shard)
		return shard_loss_mask(shard, token, n, to->loss_mask, fault);
	if (to->loss_mask)
		memset(to->loss_mask, 1, n);
	return true;
}
