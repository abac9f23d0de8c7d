#include "daemon/catalog/sample.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/catalog/vocab.h"
#include "daemon/shard/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/*
 * Samples a shard's tokens. False: @fault names one that may not be served. Otherwise *@looks is
 * the message about a flat shard's wrong type, or NULL. Read errors are ignored: they are reported
 * when the shard is served.
 */
static bool check_tokens(
	const struct dataset *d, const struct shard *shard, const char **looks, struct fault *fault)
{
	struct sample_place place[SAMPLE_PLACES];
	struct sample_guess guess = {0};
	uint32_t tokens[SAMPLE_PLACE_BYTES / 2];
	enum shard_type type = shard->facts.type;
	/* Tokens that are narrowed, or negative, may not fit. */
	bool may_be_refused =
		d->limit > 0 || shard_type_signed(type) || shard_type_bytes(type) > d->token_bytes;

	for (unsigned p = 0, n = sample_places(shard, place); p < n; p++) {
		uint64_t count = place[p].tokens, i;

		if (!shard_read(shard, place[p].token, count, tokens, fault))
			return fault->code != FAULT_TOKEN;
		i = vocab_first_refused(d, tokens, count);
		if (i < count)
			return vocab_refuse(d, place[p].token + i, tokens, i, fault);
		sample_add(&guess, tokens, count, d->token_bytes);
		if (!may_be_refused && sample_settled(&guess))
			break; /* saves the reads of the other places */
	}
	*looks = d->format == &shard_flat ? sample_looks(&guess, d->token_bytes) : NULL;
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

/* If the config sets dtype, a flat shard that looks like another type gets only a remark. */
static bool check_type(const struct opening *o, uint64_t s, const char *looks)
{
	struct dataset *d = o->dataset;

	if (!looks || !d->hint.has_type)
		return !looks;
	pthread_mutex_lock(o->lock);
	if (!d->note[0] || s < d->note_shard) {
		snprintf(d->note, sizeof(d->note), "%.*s, but dtype: %s is set and used",
			(int)strcspn(looks, ";"), looks, shard_type_name(d->hint.type));
		d->note_shard = s;
		d->mistyped = true;
	}
	pthread_mutex_unlock(o->lock);
	return true;
}

static bool check_shard(
	const struct opening *o, uint64_t s, const struct shard *shard, const char *path)
{
	const char *looks = NULL;
	struct fault fault;

	if (!check_tokens(o->dataset, shard, &looks, &fault))
		keep_refused(o, s, path, &fault);
	return check_type(o, s, looks) ||
	       opening_refuse(o, o->source->line, "dtype", "%s %s", path, looks);
}

/* Ignores a shard that cannot be opened: that is reported when it is served. */
static bool sample(const struct opening *o, uint64_t s)
{
	const struct dataset *d = o->dataset;
	struct shard_hint hint = d->hint;
	struct shard_facts facts;
	struct fault fault;
	char path[PATH_MAX + 1];

	hint.documents = hint.loss_mask = false;
	dataset_shard_path(d, s, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return true;
	struct shard *shard = shard_describe(d->format, path, fd, &hint, &facts, &fault)
				      ? shard_open(d->format, path, fd, &hint, &facts, &fault)
				      : NULL;
	bool fine = !shard || check_shard(o, s, shard, path);

	shard_close(shard);
	close(fd);
	return fine;
}

static bool sample_quietly(void *context, uint64_t i)
{
	struct opening quiet = *(const struct opening *)context;
	struct fault fault;

	quiet.fault = &fault; /* sample_dataset() reports it */
	return sample(&quiet, shard_of(quiet.dataset, i));
}

/* Marks the flat shards that were not sampled: they are checked when they are opened. */
static bool remember_others(const struct opening *o)
{
	struct dataset *d = o->dataset;

	if (d->format != &shard_flat || d->hint.has_type || d->table.shards <= SAMPLE_SHARDS)
		return true;
	d->unsampled = malloc(d->table.shards);
	if (!d->unsampled)
		return opening_refuse_memory(o);
	memset(d->unsampled, true, d->table.shards);
	for (uint64_t i = 0; i < SAMPLE_SHARDS; i++)
		d->unsampled[shard_of(d, i)] = false;
	return true;
}

bool sample_dataset(const struct opening *o)
{
	struct dataset *d = o->dataset;

	/* A manifest's shards are not read in advance. */
	if (d->sizes || (d->format != &shard_flat && d->limit == 0))
		return true;
	uint64_t n = samples_of(d), fault = parallel_for(n, sample_quietly, (void *)(uintptr_t)o);

	for (; fault < n; fault++) /* sample again, to report the first fault */
		if (!sample(o, shard_of(d, fault)))
			return false;
	return remember_others(o);
}

bool sample_opened(
	const struct dataset *d, uint64_t shard, const struct shard *opened, struct fault *fault)
{
	bool first = d->objects ? false /* `tokctl inspect` did it */
		     : d->sizes ? d->identity[shard].inode == 0
				: d->unsampled && d->unsampled[shard];
	const char *looks = first && !d->hint.has_type ? sample_shard(opened) : NULL;

	if (looks)
		return fault_set(fault, FAULT_DATA, "dtype", "%s", looks);
	if (first && d->unsampled)
		d->unsampled[shard] = false;
	return true;
}
