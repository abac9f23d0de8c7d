#include "daemon/catalog/vocab.h"

#include "daemon/shard/tokens.h"

#include <inttypes.h>

uint64_t vocab_first_refused(const struct dataset *d, const void *tokens, uint64_t n)
{
	return d->limit == 0
		       ? n
		       : tokens_first_above(tokens, n, d->token_bytes, (uint32_t)(d->limit - 1));
}

bool vocab_refuse(const struct dataset *d, uint64_t token, const void *tokens, uint64_t i,
	struct fault *fault)
{
	uint32_t value = tokens_value(tokens, i, d->token_bytes);

	if (d->is_signed && value > INT32_MAX)
		return fault_set(fault, FAULT_TOKEN, "",
			"token %" PRIu64 " is %" PRId32 "; must be 0 or more", token,
			(int32_t)value);
	return fault_set(fault, FAULT_TOKEN, "",
		"token %" PRIu64 " is %" PRIu32 "; must be below the stream's vocab, %" PRIu64
		"; set a larger vocab, or tokenize the shard again, or this is not a file of "
		"tokens",
		token, value, d->limit);
}
