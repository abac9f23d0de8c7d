#include "daemon/shard/sample.h"

enum {
	ALIGN = 4,    /* tokens: an int64 that is read as u16 begins at a multiple of 4 */
	CHANGES = 32, /* that the tokens above SMALL must show */
	SMALL = 3,    /* the high half of ids below 2^18 */
	LARGE_FRAME = 1 << 20,
};

unsigned sample_places(const struct shard *shard, struct sample_place *place)
{
	const struct shard_facts *facts = &shard->facts;
	uint64_t each = SAMPLE_PLACE_BYTES / shard_type_bytes(facts->type), n = facts->tokens;
	unsigned places = 0;
	bool all = n <= each * SAMPLE_PLACES, begin = facts->frame_bytes > LARGE_FRAME;

	for (; places < SAMPLE_PLACES; places++) {
		uint64_t at =
			all || begin ? places * each : (n - each) / (SAMPLE_PLACES - 1) * places;

		at -= at % ALIGN;
		if (at >= n)
			break;
		place[places] = (struct sample_place){at, n - at < each ? n - at : each};
	}
	return places;
}

static uint32_t token_at(const void *tokens, uint64_t i, uint32_t token_bytes)
{
	const uint8_t *at = (const uint8_t *)tokens + i * token_bytes;

	return token_bytes == 2 ? bytes_u16(at) : bytes_u32(at);
}

static inline __attribute__((always_inline)) void add(
	struct sample_guess *g, const void *tokens, uint64_t n, uint32_t token_bytes)
{
	struct sample_guess now = *g;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t token = token_at(tokens, i, token_bytes);

		if (token > now.most[i % 4])
			now.most[i % 4] = token;
		if (i % 2 == 0 && token > SMALL && token != now.last) {
			now.last = token;
			now.changes++;
		}
	}
	*g = now;
}

void sample_add(struct sample_guess *g, const void *tokens, uint64_t n, uint32_t token_bytes)
{
	if (token_bytes == 2) /* each with a loop of its own */
		add(g, tokens, n, 2);
	else
		add(g, tokens, n, token_bytes);
}

static uint32_t most_odd(const struct sample_guess *g)
{
	return g->most[1] > g->most[3] ? g->most[1] : g->most[3];
}

bool sample_settled(const struct sample_guess *g)
{
	return most_odd(g) > SMALL;
}

const char *sample_looks(const struct sample_guess *g, uint32_t token_bytes)
{
	uint32_t odd = most_odd(g);
	uint32_t high = g->most[2] > g->most[3] ? g->most[2] : g->most[3];

	if (g->changes < CHANGES || sample_settled(g))
		return NULL;
	if (token_bytes == 4)
		return odd > 0 ? NULL
			       : "looks like int64 (every second u32 is 0); write it as u32, or as "
				 ".npy, which states its type";
	if (high == 0)
		return "looks like int64 (three of four u16 are 0 or small); write it as u32 and "
		       "set dtype: u32, or write .npy, which states its type";
	return odd == 0 ? "looks like u32 (every second u16 is 0); set dtype: u32"
			: "looks like u32 (every second u16 is at most 3, as with ids below "
			  "262144); set dtype: u32";
}

const char *sample_shard(const struct shard *shard)
{
	struct sample_place place[SAMPLE_PLACES];
	struct sample_guess guess = {0};
	uint32_t tokens[SAMPLE_PLACE_BYTES / 2];
	struct fault fault;

	if (shard->format != &shard_flat)
		return NULL;
	for (unsigned i = 0, n = sample_places(shard, place); i < n; i++) {
		if (!shard_read(shard, place[i].token, place[i].tokens, tokens, &fault))
			return NULL;
		sample_add(&guess, tokens, place[i].tokens, shard->facts.token_bytes);
		if (sample_settled(&guess))
			return NULL;
	}
	return sample_looks(&guess, shard_type_bytes(shard->facts.type));
}
