/*
 * Annotations of a window. Document starts come from the shard's index, otherwise from the eos. The
 * loss mask comes from the shard's mask, or from bounds that leave tokens out; otherwise every
 * token may be a label.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/reader/internal.h"

#include <assert.h>
#include <string.h>

/* ---- document starts, by the token that ends a document ---- */

/* Most tokens are not an eos: a block without one is skipped, with vector instructions. */
enum { BLOCK = 64 };

#define FIND(width, type)                                                                          \
	static bool any_##width(const type *tokens, type eos)                                      \
	{                                                                                          \
		type any = 0;                                                                      \
                                                                                                   \
		for (unsigned i = 0; i < BLOCK; i++)                                               \
			any |= (type)(tokens[i] == eos);                                           \
		return any;                                                                        \
	}                                                                                          \
                                                                                                   \
	static uint32_t find_##width(uint32_t *start, const type *tokens, uint32_t n, type eos)    \
	{                                                                                          \
		uint32_t found = 0;                                                                \
                                                                                                   \
		for (uint32_t at = 0, end; at < n; at = end) {                                     \
			end = n - at < BLOCK ? n : at + BLOCK;                                     \
			if (end - at == BLOCK && !any_##width(tokens + at, eos))                   \
				continue;                                                          \
			for (uint32_t i = at; i < end; i++) {                                      \
				start[found] = i + 1;                                              \
				found += tokens[i] == eos;                                         \
			}                                                                          \
		}                                                                                  \
		return found;                                                                      \
	}

FIND(u16, uint16_t)
FIND(u32, uint32_t)

/* Writes the index of each of the @n tokens that follows an @eos to @start, ascending. Returns how
 * many there are. An @eos that is the last token does not count. The tokens may change meanwhile:
 * the indices ascend and are in range in any case. */
static uint32_t documents_find(
	uint32_t *start, const void *tokens, uint32_t n, uint32_t token_bytes, uint32_t eos)
{
	assert(token_bytes == 2 || token_bytes == 4);
	if (n == 0)
		return 0;
	if (token_bytes == 4)
		return find_u32(start, tokens, n - 1, eos);
	return eos <= UINT16_MAX ? find_u16(start, tokens, n - 1, (uint16_t)eos) : 0;
}

/* ---- a window ---- */

bool tokens_pass(const struct reader_read *window)
{
	return vocab_first_refused(window->dataset, window->to, window->tokens) == window->tokens;
}

bool annotations_in_files(const struct dataset *d, const struct shard *shard)
{
	if (!shard)
		return false;
	return (d->hint.documents && shard->facts.documents != SHARD_UNKNOWN) ||
	       (d->hint.loss_mask && (shard->mask || shard->map.outside > 0));
}

/* A window that is a sample has document starts only by the eos. */
static bool write_documents(
	const struct reader_read *window, const struct shard *shard, struct fault *fault)
{
	const struct dataset *d = window->dataset;
	const struct annotations *to = &window->annotations;
	uint32_t n = (uint32_t)window->tokens, count = 0;

	if (shard && shard->facts.documents != SHARD_UNKNOWN)
		count = shard_documents(shard, window->token, n, to->start, n);
	else if (d->stream->has_eos)
		count = documents_find(
			to->start, window->to, n, d->token_bytes, (uint32_t)d->stream->eos);
	else if (d->sample_tokens == 0)
		return fault_set(fault, FAULT_DATA, "",
			"the ends of its documents are unknown: it has no index, and the stream "
			"has no eos; set eos, the token that ends a document");
	assert(count <= n);
	*to->count = count;
	return true;
}

bool annotations_write(
	const struct reader_read *window, const struct shard *shard, struct fault *fault)
{
	const struct annotations *to = &window->annotations;
	uint64_t n = window->tokens;

	assert(n > 0 && n <= UINT32_MAX && !to->count == !to->start);
	if (to->count && !write_documents(window, shard, fault))
		return false;
	if (to->loss_mask && shard)
		return shard_loss_mask(shard, window->token, n, to->loss_mask, fault);
	if (to->loss_mask)
		memset(to->loss_mask, 1, n);
	return true;
}
