#define XXH_INLINE_ALL

#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/sample.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { COPY_LEAST = 1000 }; /* tokens; shorter shards may be equal */

struct sampling {
	const struct opening *opening;
	uint64_t *hash; /* [SAMPLE_SHARDS] of the samples; 0: none */
};

/* The number of the @i-th sampled shard. */
static uint64_t shard_of(const struct dataset *d, uint64_t i)
{
	uint64_t shards = d->table.shards;

	return shards <= SAMPLE_SHARDS
		       ? i
		       : (shards - 1) / (SAMPLE_SHARDS - 1) * i +
				 (shards - 1) % (SAMPLE_SHARDS - 1) * i / (SAMPLE_SHARDS - 1);
}

static uint64_t samples_of(const struct dataset *d)
{
	return d->table.shards < SAMPLE_SHARDS ? d->table.shards : SAMPLE_SHARDS;
}

/* Whether none of the tokens is refused by the stream. False: @fault names one. */
static bool check_tokens(const struct dataset *d, const struct sample *s, struct fault *fault)
{
	unsigned at = 0;

	for (unsigned p = 0; d->limit > 0 && p < s->places; at += (unsigned)s->place[p++].tokens)
		for (uint64_t i = 0; i < s->place[p].tokens; i++) {
			uint32_t value = s->value[at + i];
			uint16_t narrow = (uint16_t)value;

			if (value >= d->limit)
				return vocab_refuse(d, s->place[p].token + i,
					d->token_bytes == 2 ? (const void *)&narrow : &value, 0,
					fault);
		}
	return true;
}

/* Records the fault of the first shard with such a token. */
static void keep_refused(
	const struct opening *o, uint64_t s, const char *path, const struct fault *cause)
{
	struct dataset *d = o->dataset;
	struct opening copy = *o;
	struct fault fault;

	copy.fault = &fault;
	opening_refuse(&copy, o->source->path_line, "path", "%s: %s", path, cause->text);
	pthread_mutex_lock(o->lock);
	if (!d->refused || s < d->refused_shard) {
		free(d->refused);
		d->refused = strdup(fault.text);
		d->refused_shard = s;
	}
	pthread_mutex_unlock(o->lock);
}

/* Keeps the verdict that weighs most, of the first shard that has it. */
static void keep_doubt(const struct opening *o, uint64_t s, const struct sample_verdict *v)
{
	struct dataset *d = o->dataset;
	size_t n = strcspn(v->text, ";");

	pthread_mutex_lock(o->lock);
	if (v->kind > d->doubt_kind || (v->kind == d->doubt_kind && s < d->doubt_shard)) {
		if (v->kind > SAMPLE_DOUBT && d->hint.has_type)
			snprintf(d->doubt, sizeof(d->doubt), "%.*s, but dtype: %s is set and used",
				(int)n, v->text, shard_type_name(d->hint.type));
		else
			snprintf(d->doubt, sizeof(d->doubt), "%.*s", (int)n, v->text);
		d->doubt_kind = v->kind;
		d->doubt_shard = s;
	}
	pthread_mutex_unlock(o->lock);
}

/*
 * Whether the shard may be served. Without a word in the config about its tokens, a file that does
 * not look like tokens may not.
 */
static bool may_serve(const struct dataset *d, const struct sample_verdict *v)
{
	return v->kind <= SAMPLE_DOUBT || d->hint.has_type ||
	       (v->kind == SAMPLE_FOREIGN && d->has_vocab);
}

/* Opens a shard. NULL: it cannot be opened, which is reported when it is served. */
static struct shard *open_shard(const struct dataset *d, const char *path, int *fd)
{
	struct shard_hint hint = d->hint;
	struct fault fault;

	hint.documents = hint.loss_mask = false;
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	return *fd >= 0 ? shard_open(d->format, path, *fd, &hint, &fault) : NULL;
}

/* Whether shard @s looks like tokens of a wider type. */
static bool is_wide(const struct dataset *d, uint64_t s)
{
	struct sample_verdict v = {.kind = SAMPLE_FINE};
	char path[PATH_MAX + 1];
	int fd;

	dataset_shard_path(d, s, path, sizeof(path));
	struct shard *shard = open_shard(d, path, &fd);

	if (shard)
		v = sample_shard(shard);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return v.kind == SAMPLE_WIDE;
}

static bool refuse(
	const struct opening *o, uint64_t s, const char *path, const struct sample_verdict *v)
{
	const struct dataset *d = o->dataset;
	uint64_t other = s == 0 ? 1 : 0;

	if (v->kind == SAMPLE_FOREIGN)
		return opening_refuse(o, o->source->path_line, "path",
			"%s %s; move it away, or, if it does hold tokens, set dtype: %s", path,
			v->text, shard_type_name(d->hint.type));
	if (d->table.shards > 1 && !is_wide(d, other)) /* another dtype would be wrong for that */
		return opening_refuse(o, o->source->path_line, "path",
			"%s %.*s, but %s does not; move it away, or write it again", path,
			(int)strcspn(v->text, ";"), v->text, dataset_shard_name(d, other));
	return opening_refuse(o, o->source->line, "dtype", "%s %s", path, v->text);
}

/* Read errors are ignored: they are reported when the shard is served. */
static bool check_shard(const struct sampling *all, uint64_t i, const struct opening *o,
	const struct shard *shard, const char *path)
{
	uint64_t s = shard_of(o->dataset, i);
	struct sample_verdict v = {.kind = SAMPLE_FINE};
	struct fault fault = {.code = FAULT_NONE};
	struct sample *sample = sample_read(shard, &fault);

	if (sample) {
		uint64_t hash = XXH64(
			sample->value, sample->n * sizeof(*sample->value), shard->facts.tokens);

		v = sample_judge(sample, shard);
		if (sample->n >= COPY_LEAST && v.kind == SAMPLE_FINE)
			all->hash[i] = hash;
		pthread_mutex_lock(o->lock);
		o->dataset->contents += order_derive(hash, s);
		pthread_mutex_unlock(o->lock);
	}
	if (sample ? !check_tokens(o->dataset, sample, &fault) : fault.code == FAULT_TOKEN)
		keep_refused(o, s, path, &fault);
	free(sample);
	if (!may_serve(o->dataset, &v))
		return refuse(o, s, path, &v);
	keep_doubt(o, s, &v);
	return true;
}

static bool sample(const struct sampling *all, uint64_t i, const struct opening *o)
{
	char path[PATH_MAX + 1];
	int fd;

	dataset_shard_path(o->dataset, shard_of(o->dataset, i), path, sizeof(path));
	struct shard *shard = open_shard(o->dataset, path, &fd);
	bool fine = !shard || check_shard(all, i, o, shard, path);

	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return fine;
}

static bool sample_each(const struct parallel *p, struct fault *fault)
{
	const struct sampling *all = p->context;
	struct opening o = *all->opening;

	o.fault = fault;
	return sample(all, p->i, &o);
}

/* Keeps a doubt about two shards with equal samples. */
static void find_copies(const struct sampling *all, uint64_t n)
{
	struct dataset *d = all->opening->dataset;
	struct sample_verdict v = {.kind = SAMPLE_DOUBT};

	for (uint64_t i = 1; i < n; i++)
		for (uint64_t k = 0; k < i; k++)
			if (all->hash[i] != 0 && all->hash[i] == all->hash[k]) {
				snprintf(v.text, sizeof(v.text),
					"has the same tokens as %.150s, wherever both were sampled",
					dataset_shard_name(d, shard_of(d, k)));
				keep_doubt(all->opening, shard_of(d, i), &v);
				return;
			}
}

bool sample_dataset(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t hash[SAMPLE_SHARDS] = {0}, n = samples_of(d);
	struct sampling all = {o, hash};

	if (d->listed) /* a manifest's shards are not read in advance */
		return true;
	if (parallel_for(n, parallel_reads(n), sample_each, &all, o->fault) < n)
		return false;
	find_copies(&all, n);
	return true;
}
