/* Pieces are read by several threads, each in blocks that fit into a processor's cache. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/tokens.h"

#define XXH_INLINE_ALL
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK_TOKENS = 1 << 16 };

/* ---- widths ---- */

uint64_t ctl_convert(const void *from, uint32_t from_bytes, uint64_t n, void *to, uint32_t to_bytes,
	uint64_t most)
{
	uint64_t good = tokens_first_above(
		from, n, from_bytes, most < UINT32_MAX ? (uint32_t)most : UINT32_MAX);

	if (from_bytes == to_bytes)
		memcpy(to, from, good * to_bytes);
	else if (to_bytes == 4)
		for (uint64_t i = 0; i < good; i++)
			((uint32_t *)to)[i] = ((const uint16_t *)from)[i];
	else
		for (uint64_t i = 0; i < good; i++)
			((uint16_t *)to)[i] = (uint16_t)((const uint32_t *)from)[i];
	return good;
}

/* ---- digests ---- */

static void digest_add(XXH3_state_t *state, const void *tokens, size_t n, uint32_t token_bytes)
{
	const uint16_t *narrow = tokens;
	uint32_t wide[4096];

	if (token_bytes == 4) {
		XXH3_64bits_update(state, tokens, 4 * n);
		return;
	}
	while (n > 0) {
		size_t some = n < 4096 ? n : 4096;

		for (size_t i = 0; i < some; i++)
			wide[i] = narrow[i];
		XXH3_64bits_update(state, wide, 4 * some);
		narrow += some;
		n -= some;
	}
}

uint64_t ctl_digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece)
{
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	XXH3_64bits_reset_withSeed(&state, piece);
	digest_add(&state, tokens, n, token_bytes);
	return XXH3_64bits_digest(&state);
}

/* ---- reading all of them ---- */

struct scanning {
	struct ctl_scan *scan;
	pthread_mutex_t lock; /* over the result */
	void **block;	      /* [threads] */
};

/* The result of one piece. */
struct seen {
	uint64_t digest, most, masked, beyond, beyond_value, failures, failed_token;
	struct fault failed;
};

static void look(const struct ctl_scan *scan, struct seen *seen, uint64_t token, const void *tokens,
	uint64_t n)
{
	uint32_t width = scan->shard->facts.token_bytes, most = tokens_most(tokens, n, width);

	seen->most = most > seen->most ? most : seen->most;
	if (scan->vocab && most >= scan->vocab && token < seen->beyond) {
		uint64_t i = tokens_first_above(tokens, n, width, (uint32_t)scan->vocab - 1);

		seen->beyond = token + i;
		seen->beyond_value = tokens_value(tokens, i, width);
	}
}

static void note_fault(struct seen *seen, uint64_t token, const struct fault *fault)
{
	if (seen->failures++ > 0 && token >= seen->failed_token)
		return;
	seen->failed_token = token;
	seen->failed = *fault;
}

/* Counts the masked ones of @n tokens. @block: room for @n bytes. */
static void count_masked(
	const struct ctl_scan *scan, struct seen *seen, uint64_t token, uint64_t n, uint8_t *block)
{
	struct fault fault;

	if (!shard_loss_mask(scan->shard, token, n, block, &fault)) {
		note_fault(seen, token, &fault);
		return;
	}
	uint64_t labels = 0;

	for (uint64_t i = 0; i < n; i++)
		labels += block[i];
	seen->masked += n - labels;
}

static uint64_t block_tokens(const struct ctl_scan *scan)
{
	return scan->whole ? scan->piece_tokens : BLOCK_TOKENS;
}

static void scan_blocks(const struct ctl_scan *scan, struct seen *seen, uint64_t piece, void *block)
{
	const struct shard_facts *facts = &scan->shard->facts;
	uint64_t token = piece * scan->piece_tokens, end = facts->tokens;
	XXH3_state_t state;

	if (end - token > scan->piece_tokens)
		end = token + scan->piece_tokens;
	XXH3_INITSTATE(&state);
	XXH3_64bits_reset_withSeed(&state, piece);
	while (token < end) {
		uint64_t most = block_tokens(scan), n = end - token < most ? end - token : most;
		struct fault fault;

		if (shard_read(scan->shard, token, n, block, &fault)) {
			look(scan, seen, token, block, n);
			if (scan->digests)
				digest_add(&state, block, n, facts->token_bytes);
		} else {
			note_fault(seen, token, &fault);
		}
		if (scan->masks)
			count_masked(scan, seen, token, n, block);
		if (scan->progress)
			ctl_progress_add(scan->progress, n * facts->token_bytes);
		token += n;
	}
	if (scan->digests)
		seen->digest = XXH3_64bits_digest(&state);
}

static void join(struct ctl_scan *scan, const struct seen *seen)
{
	scan->digest += seen->digest;
	scan->masked += seen->masked;
	scan->most = seen->most > scan->most ? seen->most : scan->most;
	if (seen->beyond < scan->beyond) {
		scan->beyond = seen->beyond;
		scan->beyond_value = seen->beyond_value;
	}
	if (seen->failures > 0 &&
		(scan->failures == 0 || seen->failed_token < scan->failed_token)) {
		scan->failed_token = seen->failed_token;
		scan->failed = seen->failed;
	}
	scan->failures += seen->failures;
}

static bool scan_piece(const struct parallel *p, struct fault *fault)
{
	struct scanning *s = p->context;
	struct seen seen = {.beyond = SHARD_UNKNOWN};
	void **block = &s->block[p->thread];

	if (!*block)
		*block = malloc(block_tokens(s->scan) * sizeof(uint32_t));
	if (!*block)
		return fault_memory(fault);
	scan_blocks(s->scan, &seen, p->i, *block);
	pthread_mutex_lock(&s->lock);
	join(s->scan, &seen);
	pthread_mutex_unlock(&s->lock);
	return true;
}

bool ctl_scan(struct ctl_scan *scan)
{
	void *block[PARALLEL_THREADS] = {NULL};
	struct scanning s = {.scan = scan, .lock = PTHREAD_MUTEX_INITIALIZER, .block = block};
	uint64_t tokens = scan->shard->facts.tokens,
		 pieces = tokens / scan->piece_tokens + (tokens % scan->piece_tokens > 0);
	struct fault fault;
	bool fine;

	scan->beyond = SHARD_UNKNOWN;
	fine = parallel_for(pieces, scan->threads, scan_piece, &s, &fault) == pieces;
	for (unsigned i = 0; i < PARALLEL_THREADS; i++)
		free(block[i]);
	return fine;
}
