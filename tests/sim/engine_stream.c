/* Streams: datasets of a few shards, cursors anywhere in them, and tokens that are a function of
 * their place. */
#include "daemon/reader/documents.h"
#include "tests/sim/engine_sim.h"
#include "tests/unit/random_part.h"

#include <string.h>

static void dataset_make(struct sim *sim, struct dataset *d, uint64_t window, uint64_t stride)
{
	d->key = rng_next(&sim->rng);
	d->table = (struct table){
		.window_tokens = window,
		.stride = stride,
		.shards = 1 + below(sim, SHARDS),
		.tokens = d->tokens,
		.first_window = d->first,
	};
	for (uint64_t s = 0; s < d->table.shards; s++)
		d->tokens[s] = one_in(sim, 4) ? below(sim, window + 2) : window + below(sim, 300);
	if (one_in(sim, 6))
		d->tokens[0] += UINT64_C(1) << 40;
	table_number(&d->table);
}

static struct cursor_source source_of(struct sim *sim, const struct dataset *d, const char *name)
{
	static const uint32_t sizes[] = {1, 2, 7, 64};
	struct cursor_source source = {
		.name = name,
		.weight = d->table.windows == 0 ? 0 : 0.01 + (double)below(sim, 100),
		.windows = d->table.windows,
		.digest = d->key,
		.block = sizes[below(sim, 4)],
		.group = sizes[below(sim, 4)],
		.shuffle = (enum order_shuffle)below(sim, 3),
		.slide = one_in(sim, 2),
	};

	if (one_in(sim, 2))
		random_part(&sim->rng, source.windows, &source.lo, &source.hi);
	return source;
}

void stream_make(struct sim *sim, struct stream *s)
{
	static const char *const names[DATASETS] = {"a", "b", "c", "d", "e"};
	struct cursor identity = {.stream = "sim",
		.seed = rng_next(&sim->rng),
		.seq_len = 1 + below(sim, WINDOW_MAX - 2)};
	struct cursor_source source[DATASETS];
	uint32_t n = 1 + (uint32_t)below(sim, DATASETS);
	struct fault fault;

	identity.extra = below(sim, 3);
	identity.stride = 1 + below(sim, 2 * identity.seq_len);
	s->token_bytes = one_in(sim, 2) ? 2 : 4;
	s->annotations =
		s == sim->stream ? RING_DOCUMENTS | RING_LOSS_MASK : (unsigned)below(sim, 4);
	for (uint32_t d = 0; d < n; d++) {
		do
			dataset_make(sim, &s->dataset[d], identity.seq_len + identity.extra,
				identity.stride);
		while (d == 0 && s->dataset[d].table.windows == 0);
		s->dataset[d].often =
			s->annotations & RING_DOCUMENTS ? (uint32_t)below(sim, 12) : 0;
		source[d] = source_of(sim, &s->dataset[d], names[d]);
		/* The first stream is always local. */
		if (sim->stores && s != sim->stream && !one_in(sim, 3))
			s->dataset[d].queue = 1 + (unsigned)below(sim, STORES);
		s->source[d] = (struct feed_source){.table = &s->dataset[d].table,
			.owner = &s->dataset[d],
			.queue = s->dataset[d].queue};
	}
	if (one_in(sim, 3))
		identity.epochs = 1 + below(sim, 3);
	else if (one_in(sim, 2))
		identity.samples = 1 + below(sim, 5000);
	CHECK(sim, cursor_begin(&s->begin, &identity, source, n, NULL, 0, &fault));
}

/* A cursor anywhere in the stream, with or without a pending mix. */
struct cursor stream_cursor(struct sim *sim, const struct stream *s)
{
	struct cursor c;
	struct fault fault;
	uint64_t end = cursor_end(&s->begin),
		 near = end == UINT64_MAX || one_in(sim, 2) ? 5000 : 30;
	double weights[DATASETS];

	CHECK(sim, cursor_copy(&c, &s->begin));
	uint64_t to =
		end == UINT64_MAX && one_in(sim, 3) ? rng_wide(&sim->rng) >> 1 : below(sim, 5000);

	if (end != UINT64_MAX)
		to = end - below(sim, near < end ? near : end + 1);
	CHECK(sim, cursor_seek(&c, to, &fault));
	for (uint32_t d = 0; d < c.datasets; d++)
		weights[d] = c.order[d].windows == 0 || (d > 0 && one_in(sim, 3))
				     ? 0
				     : 1 + (double)below(sim, 9);
	if (!c.epochs && one_in(sim, 2))
		CHECK(sim, cursor_mix(&c, cursor_mix_at(&c), weights, &fault));
	return c;
}

/* ---- tokens: a function of their place ---- */

static uint32_t token_at(const struct dataset *d, uint64_t shard, uint64_t token)
{
	uint64_t mixed = order_mix64(d->key ^ shard << 48 ^ token);

	return d->often && (mixed >> 32) % d->often == 0 ? EOS : (uint32_t)mixed;
}

void stream_tokens(const struct dataset *d, uint64_t shard, uint64_t token, uint64_t n,
	uint32_t bytes, uint8_t *to)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t value = token_at(d, shard, token + i);

		memcpy(to + i * bytes, &value, bytes); /* on little-endian machines */
	}
}

/* Only the token decides whether it may be a label. A failed read leaves nonsense. */
void stream_annotations(const struct engine_action *a, uint32_t bytes, bool bad)
{
	if (a->annotations.count)
		*a->annotations.count = bad ? UINT32_MAX
					    : documents_find(a->annotations.start, a->to,
						      (uint32_t)a->tokens, bytes, EOS);
	for (uint64_t i = 0; a->annotations.loss_mask && i < a->tokens; i++)
		a->annotations.loss_mask[i] = bad ? 0xee : ((const uint8_t *)a->to)[i * bytes] & 1;
}

/* Finds the shard and the offset of a window, by counting. */
void stream_locate(const struct dataset *d, const struct order_dataset *o, uint64_t seed,
	const struct order_place *p, uint64_t *shard, uint64_t *offset)
{
	const struct table *t = &d->table;
	uint64_t window = p->window;

	for (*shard = 0;
		window >= order_shard_windows(t->tokens[*shard], t->window_tokens, t->stride);
		++*shard)
		window -= order_shard_windows(t->tokens[*shard], t->window_tokens, t->stride);
	*offset = window * t->stride +
		  order_slide(o, seed, p->epoch, *shard,
			  order_shard_slack(t->tokens[*shard], t->window_tokens, t->stride));
}
