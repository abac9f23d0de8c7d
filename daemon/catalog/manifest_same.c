#include "daemon/catalog/manifest.h"

#include <inttypes.h>

static bool differ(struct fault *fault, const char *field, uint64_t listed, uint64_t found)
{
	return fault_set(fault, FAULT_CHANGED, field,
		"%s is %" PRIu64 " in the manifest and %" PRIu64 " in the file", field, listed,
		found);
}

static bool differ_text(
	struct fault *fault, const char *field, const char *listed, const char *found)
{
	return fault_set(fault, FAULT_CHANGED, field, "%s is %s in the manifest and %s in the file",
		field, listed, found);
}

bool manifest_same(const struct manifest_shard *listed, const struct manifest_shard *found,
	struct fault *fault)
{
	if (listed->size != found->size)
		return differ(fault, "size", listed->size, found->size);
	if (listed->format != found->format)
		return differ_text(fault, "format", listed->format->name, found->format->name);
	if (listed->type != found->type)
		return differ_text(fault, "dtype", shard_type_name(listed->type),
			shard_type_name(found->type));
	if (listed->tokens != found->tokens)
		return differ(fault, "tokens", listed->tokens, found->tokens);
	/* Samples are joined if those of another shard are shorter or longer than a window. */
	if (listed->sample_tokens != found->sample_tokens &&
		!(listed->format->mixes_rows && listed->sample_tokens == 0))
		return differ(fault, "sample_tokens", listed->sample_tokens, found->sample_tokens);
	if (listed->frame_bytes < found->frame_bytes)
		return differ(
			fault, "the largest frame_bytes", listed->frame_bytes, found->frame_bytes);
	return true;
}
