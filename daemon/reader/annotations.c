#include "daemon/reader/annotations.h"

#include "daemon/reader/documents.h"

#include <errno.h>
#include <string.h>

bool annotations_in_files(const struct dataset *d, const struct shard *source)
{
	return (d->hint.documents && source->facts.documents != SHARD_UNKNOWN) ||
	       (d->hint.loss_mask && (source->mask || source->bounds));
}

/* Windows that are samples hold no boundary but what an eos shows. */
static bool write_documents(const struct dataset *d, const struct shard *source, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, char *why, size_t why_bytes)
{
	int64_t count = 0;

	if (source && source->facts.documents != SHARD_UNKNOWN)
		count = shard_documents(source, token, n, to->start, (uint32_t)n, why, why_bytes);
	else if (d->has_eos)
		count = documents_find(to->start, tokens, (uint32_t)n, d->token_bytes, d->eos);
	else if (d->sample_tokens == 0)
		return bytes_why(why, why_bytes,
			"nothing says where its documents end: it has no index of them, and the "
			"stream no "
			"eos");
	if (count >= 0)
		*to->count = (uint32_t)count;
	return count >= 0;
}

bool annotations_write(const struct dataset *d, const struct shard *source, uint64_t token,
	uint64_t n, const void *tokens, const struct annotations *to, int *error, char *why,
	size_t why_bytes)
{
	*error = EBADMSG;
	if (to->count && !write_documents(d, source, token, n, tokens, to, why, why_bytes))
		return false;
	if (to->loss_mask && source)
		return shard_loss_mask(source, token, n, to->loss_mask, error, why, why_bytes);
	if (to->loss_mask)
		memset(to->loss_mask, 1, n);
	return true;
}
