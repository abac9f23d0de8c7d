/* All tokens of a shard. */
#include "client/ctl/offline/shards.h"
#include "daemon/shard/tokens.h"

#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- digests ---- */

static uint64_t digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece)
{
	const uint16_t *narrow = tokens;
	uint32_t wide[4096];
	XXH3_state_t state;

	if (token_bytes == 4)
		return XXH3_64bits_withSeed(tokens, 4 * n, piece);
	XXH3_INITSTATE(&state);
	XXH3_64bits_reset_withSeed(&state, piece);
	for (uint64_t some; n > 0; narrow += some, n -= some) {
		some = n < 4096 ? n : 4096;
		for (uint64_t i = 0; i < some; i++)
			wide[i] = narrow[i];
		XXH3_64bits_update(&state, wide, 4 * some);
	}
	return XXH3_64bits_digest(&state);
}

uint64_t ctl_digest(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece)
{
	const char *from = tokens;
	uint64_t sum = 0;

	for (uint64_t some; n > 0; from += some * token_bytes, n -= some) {
		some = n < CTL_DIGEST_TOKENS ? n : CTL_DIGEST_TOKENS;
		sum += digest_piece(from, some, token_bytes, piece++);
	}
	return sum;
}

/* ---- reading all of them ---- */

static void look(
	struct ctl_scan *scan, uint64_t token, const void *tokens, uint64_t n, uint32_t token_bytes)
{
	uint32_t most = tokens_most(tokens, n, token_bytes);

	scan->most = most > scan->most ? most : scan->most;
	if (scan->vocab && most >= scan->vocab && scan->beyond == SHARD_UNKNOWN) {
		uint64_t i = tokens_first_above(tokens, n, token_bytes, (uint32_t)scan->vocab - 1);

		scan->beyond = token + i;
		scan->beyond_value = tokens_value(tokens, i, token_bytes);
	}
}

/* Counts the masked ones of @n tokens. @block: room for @n bytes. */
static bool count_masked(struct ctl_scan *scan, const struct shard *shard, uint64_t token,
	uint64_t n, uint8_t *block, struct fault *fault)
{
	if (!shard_loss_mask(shard, token, n, block, fault))
		return false;
	for (uint64_t i = 0; i < n; i++)
		scan->masked += !block[i];
	return true;
}

bool ctl_scan(struct ctl_scan *scan, const struct shard *shard, struct fault *fault)
{
	uint64_t tokens = shard->facts.tokens, n;
	uint32_t width = shard->facts.token_bytes;
	void *piece = malloc((tokens < CTL_DIGEST_TOKENS ? tokens : CTL_DIGEST_TOKENS) * width + 1);
	bool fine = piece || fault_memory(fault);

	scan->digest = scan->most = scan->masked = 0;
	scan->beyond = SHARD_UNKNOWN;
	for (uint64_t token = 0; fine && token < tokens; token += n) {
		n = tokens - token < CTL_DIGEST_TOKENS ? tokens - token : CTL_DIGEST_TOKENS;
		fine = shard_read(shard, token, n, piece, fault);
		if (!fine)
			break;
		look(scan, token, piece, n, width);
		if (scan->digests)
			scan->digest += ctl_digest(piece, n, width, token / CTL_DIGEST_TOKENS);
		if (scan->masks)
			fine = count_masked(scan, shard, token, n, piece, fault);
		if (scan->progress)
			ctl_progress_add(scan->progress, n);
	}
	free(piece);
	return fine;
}
