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
		uint64_t i = d->limit > 0 ? tokens_first_above(sample->value, sample->n, 4,
						    (uint32_t)(d->limit - 1))
					  : sample->n;

		if (i < sample->n)
			vocab_refuse(d, sample_token(sample, (unsigned)i), sample->value[i],
				&seen.token);
		seen.verdict = sample_judge(sample, shard);
		seen.hash = XXH64(
			sample->value, sample->n * sizeof(*sample->value), shard->facts.tokens);
		seen.long_enough = sample->n >= COPY_LEAST;
	}
	free(sample);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return seen;
}

/* Remarks on the first shard of each kind. *@told has a bit for each. */
static void tell(struct dataset *d, uint64_t s, const struct sample_verdict *v, unsigned *told)
{
	bool wrong = v->kind > SAMPLE_DOUBT, set = wrong && d->hint.has_type;

	if (v->kind == SAMPLE_FINE || *told & 1u << v->kind)
		return;
	*told |= 1u << v->kind;
	dataset_remark(d, wrong ? REMARK_WRONG : REMARK_DOUBT,
		"shard %.200s %.*s%s%s%s (the first of its kind)", shard_list_name(&d->list, s),
		(int)strcspn(v->text, ";"), v->text, set ? ", but dtype: " : "",
		set ? shard_type_name(d->hint.type) : "", set ? " is set and used" : "");
}

/* Without a word in the config about its tokens, a file that does not look like them is refused. */
static bool check_verdict(const struct dataset *d, const char *path, const struct sample_verdict *v,
	struct fault *fault)
{
	if (v->kind <= SAMPLE_DOUBT || d->config->has_dtype ||
		(v->kind == SAMPLE_FOREIGN && d->stream->has_vocab))
		return true;
	if (v->kind == SAMPLE_FOREIGN)
		return REFUSE(d, fault, path,
			"%s %s; move it away, or, if it does hold tokens, set dtype: %s", path,
			v->text, shard_type_name(d->hint.type));
	return dataset_refuse(d, fault, d->config->line, "dtype", "%s %s%s", path, v->text,
		d->table.shards > 1 ? "; if only this shard does, move it away" : "");
}

/* The number of sampled shard @i of @n. */
static uint64_t shard_of(uint64_t i, uint64_t n, uint64_t shards)
{
	return n > 1 ? i * (shards - 1) / (n - 1) : 0;
}

bool sample_dataset(struct dataset *d, struct fault *fault)
{
	uint64_t shards = d->table.shards, n = shards < SAMPLE_SHARDS ? shards : SAMPLE_SHARDS;
	uint64_t hash[SAMPLE_SHARDS] = {0};
	unsigned told = 0;
	bool refused = false;
	char path[PATH_MAX + 1];

	for (uint64_t i = 0; i < n && !d->listed; i++) {
		uint64_t s = shard_of(i, n, shards);

		shard_list_path(&d->list, s, path, sizeof(path));
		struct seen seen = look(d, path);

		if (seen.hash) /* lets ranks notice nodes with other tokens under the same names */
			d->contents += order_derive(seen.hash, s);
		if (seen.token.code == FAULT_TOKEN && !refused)
			dataset_remark(d, REMARK_WRONG,
				"its stream will stop at a bad token: %.200s: %s",
				shard_list_name(&d->list, s), seen.token.text);
		refused |= seen.token.code == FAULT_TOKEN;
		if (!check_verdict(d, path, &seen.verdict, fault))
			return false;
		tell(d, s, &seen.verdict, &told);
		if (!seen.long_enough || seen.verdict.kind != SAMPLE_FINE)
			continue;
		hash[i] = seen.hash;
		for (uint64_t k = 0; k < i; k++)
			if (hash[k] == seen.hash) {
				snprintf(seen.verdict.text, sizeof(seen.verdict.text),
					"has the same tokens as %.150s, wherever both were sampled",
					shard_list_name(&d->list, shard_of(k, n, shards)));
				seen.verdict.kind = SAMPLE_DOUBT;
				tell(d, s, &seen.verdict, &told);
				break;
			}
	}
	return true;
}
