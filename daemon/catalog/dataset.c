#include "daemon/catalog/opening.h"

#include "daemon/shard/format.h"
#include "daemon/shard/json.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

void dataset_source(const struct dataset *dataset, struct cursor_source *source)
{
	const struct config_dataset *config = dataset->config;

	*source = (struct cursor_source){
		.name = config->name,
		.weight = config->weight,
		.windows = dataset->table.windows,
		.digest = dataset->digest,
		.block = config->block,
		.group = config->group,
		.shuffle = config->shuffle,
		.slide = config->slide,
		.max_epochs = config->max_epochs,
		.lo = config->lo,
		.hi = config->hi,
	};
}

void dataset_close(struct dataset *dataset)
{
	free(dataset->table.tokens);
	free(dataset->table.first_window);
	free(dataset->entry);
	free(dataset->remark);
	free(dataset->label_mask);
	shard_list_free(&dataset->list);
	json_decref(dataset->sides);
	mds_indexes_free(dataset->hint.indexes);
	*dataset = (struct dataset){0};
}

/* ---- facts of shards ---- */

bool dataset_resize(struct dataset *d, uint64_t n, struct fault *fault)
{
	uint64_t *tokens = realloc(d->table.tokens, n * sizeof(*tokens));
	struct entry *entry = realloc(d->entry, n * sizeof(*entry));

	d->table.tokens = tokens ? tokens : d->table.tokens;
	d->entry = entry ? entry : d->entry;
	return (tokens && entry) || fault_memory(fault);
}

bool dataset_keep(struct dataset *d, uint64_t s, const struct shard_format *format,
	const struct shard_facts *f, struct fault *fault)
{
	char shown[80];
	const char *first = json_shown(shard_list_name(&d->list, 0), shown, sizeof(shown));

	if (!d->format) {
		d->format = format;
		d->token_bytes = f->token_bytes;
		d->sample_tokens = f->sample_tokens;
	}
	if (format != d->format)
		return fault_set(fault, FAULT_DATA, "format",
			"format is %s, but the first shard, %s, is %s; all shards of a dataset "
			"must have one format",
			format->name, first, d->format->name);
	if (f->token_bytes != d->token_bytes)
		return fault_set(fault, FAULT_DATA, "dtype",
			"dtype %s is served in %" PRIu32
			" bytes, but that of the first shard, %s, in %" PRIu32
			"; all shards of a dataset must have one width",
			shard_type_name(f->type), f->token_bytes, first, d->token_bytes);
	if (f->sample_tokens != d->sample_tokens && !format->mixes_rows)
		return fault_set(fault, FAULT_DATA, "sample_tokens",
			"sample_tokens is %" PRIu64
			" (0: none), but that of the first shard, %s, is %" PRIu64
			"; all shards of a dataset must have the same",
			f->sample_tokens, first, d->sample_tokens);
	if (f->sample_tokens != d->sample_tokens)
		d->sample_tokens = 0;
	d->frame_bytes = f->frame_bytes > d->frame_bytes ? f->frame_bytes : d->frame_bytes;
	d->is_signed |= f->type == SHARD_I32;
	d->table.tokens[s] = f->tokens;
	d->entry[s] = (struct entry){
		.type = (uint8_t)f->type,
		.plain_at = f->plain && f->data_at < UINT32_MAX ? (uint32_t)f->data_at + 1 : 0,
	};
	return true;
}

/* ---- in a store ---- */

void dataset_object(const struct dataset *dataset, uint64_t shard, struct object *object)
{
	const char *name = shard_list_name(&dataset->list, shard);

	assert(dataset->bucket);
	*object = (struct object){
		.bucket = dataset->bucket,
		.key = name - dataset->key_bytes,
		.etag = name + strlen(name) + 1,
		.size = dataset->entry[shard].file.bytes,
		.piece = dataset->piece,
	};
}

bool dataset_find_object(const void *dataset, const char *url, struct object *object)
{
	const struct dataset *d = dataset;
	const char *key = shard_list_name(&d->list, 0) - d->key_bytes;
	size_t root = strlen(d->list.root);
	bool below = strncmp(url, d->list.root, root) == 0 && url[root] == '/';
	int64_t shard = below ? shard_list_find(&d->list, url + root + 1) : -1;
	char side[2 * PATH_MAX];
	struct fault fault;

	if (shard >= 0) {
		dataset_object(d, (uint64_t)shard, object);
		return true;
	}
	snprintf(side, sizeof(side), "%.*s%s", below ? (int)d->key_bytes : 0, key,
		below ? url + root + 1 : url);
	void *at = json_object_iter_at(d->sides, side);
	json_t *value = json_object_iter_value(at);

	if (!at)
		return false;
	*object = (struct object){.bucket = d->bucket,
		.key = json_object_iter_key(at),
		.etag = json_string_value(json_array_get(value, 1)),
		.size = (uint64_t)json_integer_value(json_array_get(value, 0)),
		.piece = d->piece};
	if (!below)
		object->bucket = store_bucket(d->finder.stores, object->key, &object->key, &fault);
	return object->bucket;
}

/* ---- for the next process ---- */

/* Writes all arrays to @file, or reads them, which dataset_close() frees. */
static bool pass_arrays(struct dataset *d, FILE *file, bool save)
{
	size_t n = d->table.shards;
	const struct {
		void *at; /* of the pointer */
		size_t bytes;
	} arrays[] = {
		{&d->table.tokens, n * sizeof(*d->table.tokens)},
		{&d->table.first_window, (n + 1) * sizeof(*d->table.first_window)},
		{&d->entry, n * sizeof(*d->entry)},
		{&d->list.paths, d->list.bytes},
		{&d->list.at, n * sizeof(*d->list.at)},
		{&d->remark, d->remarks * sizeof(*d->remark)},
	};
	bool fine = true;

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		void **array = arrays[i].at;
		size_t bytes = arrays[i].bytes;

		if (save)
			fine = fine && fwrite(*array, 1, bytes, file) == bytes;
		else
			fine = (*array = malloc(bytes + 1)) && fine &&
			       fread(*array, 1, bytes, file) == bytes;
	}
	return fine;
}

/* The head of a saved dataset; its arrays follow. */
struct saved {
	struct dataset dataset;
	char format[16], root[PATH_MAX];
};

bool dataset_save(struct dataset *d, FILE *to)
{
	struct saved saved = {.dataset = *d};

	assert(!d->bucket);
	snprintf(saved.format, sizeof(saved.format), "%s", d->format->name);
	snprintf(saved.root, sizeof(saved.root), "%s", d->list.root);
	return fwrite(&saved, sizeof(saved), 1, to) == 1 && pass_arrays(d, to, true);
}

bool dataset_load(struct dataset *d, FILE *from, struct fault *fault)
{
	const struct dataset was = *d;
	struct saved saved;

	if (fread(&saved, sizeof(saved), 1, from) != 1)
		return fault_memory(fault);
	*d = saved.dataset;
	d->file = was.file;
	d->stream = was.stream;
	d->config = was.config;
	d->finder = was.finder;
	d->format = shard_format(saved.format);
	d->samples = NULL;
	d->label_mask = NULL;
	d->hint.indexes = NULL;
	d->list.root = strdup(saved.root);
	return (pass_arrays(d, from, false) && d->list.root) || fault_memory(fault);
}

/* ---- tokens that may not be served ---- */

uint64_t vocab_first_refused(const struct dataset *d, const void *tokens, uint64_t n)
{
	return d->limit == 0
		       ? n
		       : tokens_first_above(tokens, n, d->token_bytes, (uint32_t)(d->limit - 1));
}

bool vocab_refuse(const struct dataset *d, uint64_t token, uint32_t value, struct fault *fault)
{
	if (d->is_signed && value > INT32_MAX)
		return fault_set(fault, FAULT_TOKEN, "",
			"token %" PRIu64 " is %" PRId32 "; must be 0 or more", token,
			(int32_t)value);
	return fault_set(fault, FAULT_TOKEN, "",
		"token %" PRIu64 " is %" PRIu32 "; must be below the stream's vocab, %" PRIu64
		"; set a larger vocab, or tokenize the shard again, or this is not a file of "
		"tokens",
		token, value, d->limit);
}
