#define XXH_INLINE_ALL

#include "daemon/catalog/opening.h"

#include "daemon/shard/shard.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
	SAMPLE_SHARDS = 64, /* at most; `tokctl inspect --deep` looks at all */
	SIDE_BYTES = 4096,  /* of a side file, at each of SAMPLE_PLACES */
	/* Tokens, to remark that no eos is among them. */
	SEEN_LEAST = SAMPLE_PLACES * SAMPLE_PLACE_TOKENS,
	GZIP_END = 8, /* CRC and size of the contents; the header has a date */
};

/* A hash of bytes of the side files that are asked for; 0: there are none. */
static uint64_t hash_sides(const struct dataset *d, const struct shard *shard)
{
	char path[PATH_MAX], some[SIDE_BYTES];
	struct bytes *file = NULL;
	struct fault fault;
	uint64_t hash = 0;
	enum side_kind last = d->hint.loss_mask	  ? SIDE_MASK
			      : d->hint.documents ? SIDE_BOUNDS
						  : SIDE_OTHER;

	for (enum side_kind side = SIDE_INDEX; side <= last; side++) {
		if (!side_open(side, d->format, shard->bytes, &d->hint, path, &file, &fault) ||
			!file)
			continue;
		bool gzip = side == SIDE_BOUNDS;
		uint64_t most = gzip ? GZIP_END : SIDE_BYTES, places = SAMPLE_PLACES - 1,
			 n = file->size < most ? file->size : most, rest = file->size - n;

		hash = order_derive(hash, side, gzip ? 0 : file->size);
		for (uint64_t i = gzip ? places : 0; i <= places; i++)
			if (bytes_read(file, rest * i / places, some, n, &fault))
				hash = XXH64(some, n, hash);
		bytes_close(file);
	}
	return hash;
}

/*
 * A sample of the shard at @path, or NULL: that a shard cannot be opened or read is reported when
 * it is served. @token: FAULT_TOKEN if one of its tokens may not be served. @sides: hash_sides().
 */
static struct sample *look(
	const struct dataset *d, const char *path, struct fault *token, uint64_t *sides)
{
	struct shard_hint hint = d->hint;

	hint.documents = hint.loss_mask = false;
	struct shard *shard = shard_open(d->format, path, -1, &hint, true, token);

	token->code = FAULT_NONE;
	struct sample *s = shard ? sample_read(shard, token) : NULL;
	uint64_t i = s && d->limit > 0
			     ? tokens_first_above(s->value, s->n, 4, (uint32_t)(d->limit - 1))
			     : SHARD_UNKNOWN;

	if (s && i < s->n)
		vocab_refuse(d, sample_token(s, (unsigned)i), s->value[i], token);
	*sides = shard ? hash_sides(d, shard) : 0;
	shard_close(shard);
	return s;
}

/*
 * Without a word in the config about its tokens, a shard that does not look like them is refused.
 * Otherwise the first of each kind is remarked: *@told has a bit for each.
 */
static bool take_verdict(struct dataset *d, uint64_t shard, const char *path,
	const struct sample *s, unsigned *told, struct fault *fault)
{
	const char *type = shard_type_name(d->hint.type);
	bool wrong = s->kind > SAMPLE_DOUBT, foreign = s->kind == SAMPLE_FOREIGN,
	     set = d->config->has_dtype;

	if (wrong && !set && !foreign)
		return dataset_refuse(d, fault, d->config->line, "dtype", "%s %s%s", path, s->text,
			d->table.shards > 1 ? "; if only this shard does, move it away" : "");
	if (wrong && !set && !d->stream->has_vocab)
		return REFUSE(d, fault, path,
			"%s %s; move it away, or, if it does hold tokens, set dtype: %s", path,
			s->text, type);
	if (s->kind == SAMPLE_FINE || *told & 1u << s->kind)
		return true;
	*told |= 1u << s->kind;
	dataset_remark(d, wrong ? REMARK_WRONG : REMARK_DOUBT,
		"shard %.200s %.*s%s%s%s (the first of its kind)", shard_list_name(&d->list, shard),
		(int)strcspn(s->text, ";"), s->text, wrong && set ? ", but dtype: " : "",
		wrong && set ? type : "", wrong && set ? " is set and used" : "");
	return true;
}

bool sample_dataset(struct dataset *d, struct fault *fault)
{
	uint64_t shards = d->table.shards, n = shards < SAMPLE_SHARDS ? shards : SAMPLE_SHARDS;
	const struct config_stream *stream = d->stream;
	unsigned told = 0;
	uint64_t seen = 0;
	bool fine = true, refused = false, unread = false, ended = false;
	char path[PATH_MAX + 1];

	for (uint64_t i = 0; fine && i < n && !d->listed; i++) {
		uint64_t shard = n > 1 ? i * (shards - 1) / (n - 1) : 0, sides, hash;
		struct fault token;

		shard_list_path(&d->list, shard, path, sizeof(path));
		struct sample *s = look(d, path, &token, &sides);

		if (token.code == FAULT_TOKEN && !refused)
			dataset_remark(d, REMARK_WRONG,
				"its stream will stop at a bad token: %.200s: %s",
				shard_list_name(&d->list, shard), token.text);
		refused |= token.code == FAULT_TOKEN;
		unread |= !s;
		if (!s)
			continue;
		/* Lets ranks notice nodes with other tokens or side files under the same names. */
		hash = XXH64(s->value, s->n * sizeof(*s->value), d->table.tokens[shard]);
		d->contents += order_derive(hash, shard);
		d->annotated += order_derive(sides, shard);
		if (s->kind == SAMPLE_FINE)
			d->entry[shard].digest = hash;
		seen += s->n;
		for (unsigned t = 0; stream->documents && t < s->n; t++)
			ended |= s->value[t] == stream->eos;
		fine = take_verdict(d, shard, path, s, &told, fault);
		free(s);
	}
	/* Documents that end in an index need no eos. */
	if (stream->documents && stream->has_eos && !d->indexed && !ended && seen >= SEEN_LEAST)
		dataset_remark(d, REMARK_DOUBT,
			"none of %" PRIu64 " sampled tokens is eos, %" PRIu64
			"; unless documents are so long, set eos to the token that ends them",
			seen, stream->eos);
	if (unread)
		d->contents = 0;
	return fine;
}
