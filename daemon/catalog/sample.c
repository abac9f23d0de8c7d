#define XXH_INLINE_ALL

#include "daemon/catalog/opening.h"

#include "daemon/shard/shard.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
	SAMPLE_SHARDS = 64, /* at most; `tokctl inspect --deep` looks at all */
	COPY_LEAST = 1000,  /* tokens; shorter shards may be equal */
};

/* The result of a look at a shard. */
struct seen {
	struct sample_verdict verdict;
	uint64_t hash;	    /* of the sample; 0: there is none */
	bool long_enough;   /* to be compared with others */
	struct fault token; /* FAULT_TOKEN: it has one that may not be served */
};

/* Whether none of the tokens is refused by the stream. False: @fault names one. */
static bool check_tokens(const struct dataset *d, const struct sample *s, struct fault *fault)
{
	uint64_t i = d->limit > 0 ? tokens_first_above(s->value, s->n, 4, (uint32_t)(d->limit - 1))
				  : s->n;

	return i == s->n || vocab_refuse(d, sample_token(s, (unsigned)i), s->value[i], fault);
}

/* Shards that cannot be opened or read are fine: that is reported when they are served. */
static struct seen look(const struct dataset *d, const char *path)
{
	struct seen seen = {.verdict.kind = SAMPLE_FINE};
	struct shard_hint hint = d->hint;
	struct shard *shard = NULL;
	struct sample *sample = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	hint.documents = hint.loss_mask = false;
	if (fd >= 0)
		shard = shard_open(d->format, path, fd, &hint, &seen.token);
	seen.token.code = FAULT_NONE;
	if (shard)
		sample = sample_read(shard, &seen.token);
	if (sample) {
		seen.verdict = sample_judge(sample, shard);
		seen.hash = XXH64(
			sample->value, sample->n * sizeof(*sample->value), shard->facts.tokens);
		seen.long_enough = sample->n >= COPY_LEAST;
		check_tokens(d, sample, &seen.token);
	}
	free(sample);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return seen;
}

/* Keeps the doubt that weighs most, of the first shard that has it. */
static void keep_doubt(struct dataset *d, uint64_t s, const struct sample_verdict *v)
{
	int n = (int)strcspn(v->text, ";");

	if (v->kind <= d->doubt_kind)
		return;
	if (v->kind > SAMPLE_DOUBT && d->hint.has_type)
		snprintf(d->doubt, sizeof(d->doubt), "%.*s, but dtype: %s is set and used", n,
			v->text, shard_type_name(d->hint.type));
	else
		snprintf(d->doubt, sizeof(d->doubt), "%.*s", n, v->text);
	d->doubt_kind = v->kind;
	d->doubt_shard = s;
}

/* Keeps the fault of the first shard with a token that may not be served. */
static void keep_refused(const struct opening *o, const char *path, const struct fault *cause)
{
	struct opening copy = *o;
	struct fault fault;

	if (o->dataset->refused)
		return;
	copy.fault = &fault;
	opening_refuse(&copy, "path", "%s: %s", path, cause->text);
	o->dataset->refused = strdup(fault.text);
}

/* Without a word in the config about its tokens, a file that does not look like them is refused. */
static bool may_serve(const struct opening *o, const struct sample_verdict *v)
{
	return v->kind <= SAMPLE_DOUBT || o->source->has_dtype ||
	       (v->kind == SAMPLE_FOREIGN && o->stream->has_vocab);
}

static bool refuse(
	const struct opening *o, uint64_t s, const char *path, const struct sample_verdict *v)
{
	const struct dataset *d = o->dataset;
	uint64_t other = s == 0 ? 1 : 0;
	char others[PATH_MAX + 1];

	if (v->kind == SAMPLE_FOREIGN)
		return opening_refuse(o, "path",
			"%s %s; move it away, or, if it does hold tokens, set dtype: %s", path,
			v->text, shard_type_name(d->hint.type));
	if (d->table.shards > 1) {
		dataset_shard_path(d, other, others, sizeof(others));
		if (look(d, others).verdict.kind != SAMPLE_WIDE) /* dtype: would be wrong for it */
			return opening_refuse(o, "path",
				"%s %.*s, but %s does not; move it away, or write it again", path,
				(int)strcspn(v->text, ";"), v->text, dataset_shard_name(d, other));
	}
	return opening_refuse(o, "dtype", "%s %s", path, v->text);
}

/* The number of sampled shard @i of @n. */
static uint64_t shard_of(uint64_t i, uint64_t n, uint64_t shards)
{
	return n < SAMPLE_SHARDS
		       ? i
		       : (shards - 1) / (n - 1) * i + (shards - 1) % (n - 1) * i / (n - 1);
}

bool sample_dataset(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t shards = d->table.shards, n = shards < SAMPLE_SHARDS ? shards : SAMPLE_SHARDS;
	uint64_t hash[SAMPLE_SHARDS] = {0};
	struct sample_verdict copy = {.kind = SAMPLE_DOUBT};
	char path[PATH_MAX + 1];

	if (d->listed) /* a manifest's shards are not read in advance */
		return true;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t s = shard_of(i, n, shards);

		dataset_shard_path(d, s, path, sizeof(path));
		struct seen seen = look(d, path);

		if (seen.hash) /* lets ranks notice nodes with other tokens under the same names */
			d->contents += order_derive(seen.hash, s);
		if (seen.token.code == FAULT_TOKEN)
			keep_refused(o, path, &seen.token);
		if (!may_serve(o, &seen.verdict))
			return refuse(o, s, path, &seen.verdict);
		keep_doubt(d, s, &seen.verdict);
		if (!seen.long_enough || seen.verdict.kind != SAMPLE_FINE)
			continue;
		hash[i] = seen.hash;
		for (uint64_t k = 0; k < i && !copy.text[0]; k++)
			if (hash[k] == seen.hash) {
				snprintf(copy.text, sizeof(copy.text),
					"has the same tokens as %.150s, wherever both were sampled",
					dataset_shard_name(d, shard_of(k, n, shards)));
				keep_doubt(d, s, &copy);
			}
	}
	return true;
}
