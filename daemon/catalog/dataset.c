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

bool dataset_same_path(const struct dataset *a, const struct dataset *b)
{
	if (a->path_digest != b->path_digest)
		return false;

	char *x = realpath(a->list.root, NULL), *y = realpath(b->list.root, NULL);
	bool same = strcmp(x ? x : a->list.root, y ? y : b->list.root) == 0;

	free(x);
	free(y);
	return same;
}

void dataset_close(struct dataset *dataset)
{
	free(dataset->table.tokens);
	free(dataset->table.first_window);
	free(dataset->entry);
	free(dataset->refused);
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

/* The first shard's path, for messages. */
static const char *first_of(const struct dataset *d, char shown[80])
{
	return json_shown(dataset_shard_name(d, 0), shown, 80);
}

bool dataset_keep(struct dataset *d, uint64_t s, const struct shard_format *format,
	const struct shard_facts *f, struct fault *fault)
{
	char shown[80];

	if (!d->format) {
		d->format = format;
		d->token_bytes = f->token_bytes;
		d->sample_tokens = f->sample_tokens;
	}
	if (format != d->format)
		return fault_set(fault, FAULT_DATA, "format",
			"format is %s, but the first shard, %s, is %s; all shards of a dataset "
			"must have one format",
			format->name, first_of(d, shown), d->format->name);
	if (f->token_bytes != d->token_bytes)
		return fault_set(fault, FAULT_DATA, "dtype",
			"dtype %s is served in %" PRIu32
			" bytes, but that of the first shard, %s, in %" PRIu32
			"; all shards of a dataset must have one width",
			shard_type_name(f->type), f->token_bytes, first_of(d, shown),
			d->token_bytes);
	if (f->sample_tokens != d->sample_tokens && !format->mixes_rows)
		return fault_set(fault, FAULT_DATA, "sample_tokens",
			"sample_tokens is %" PRIu64
			" (0: none), but that of the first shard, %s, is %" PRIu64
			"; all shards of a dataset must have the same",
			f->sample_tokens, first_of(d, shown), d->sample_tokens);
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

/* ---- shards by number and by name ---- */

const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard)
{
	assert(shard < dataset->list.count);
	return shard_list_name(&dataset->list, shard);
}

void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes)
{
	assert(shard < dataset->list.count && path_bytes > 0);
	/* open("") fails with ENOENT; a truncated path might be another file */
	if (!shard_list_path(&dataset->list, shard, path, path_bytes))
		path[0] = 0;
}

uint64_t dataset_frames_budget(const struct config *config)
{
	return config->memory_bytes / 4;
}

/* ---- in a store ---- */

void dataset_object(const struct dataset *dataset, uint64_t shard, struct object *object)
{
	const char *name = dataset_shard_name(dataset, shard);

	assert(dataset->objects);
	*object = (struct object){
		.bucket = dataset->bucket,
		.key = name - dataset->key_bytes,
		.etag = name + strlen(name) + 1,
		.size = dataset->entry[shard].file.bytes,
		.piece = dataset->piece,
	};
}

static bool find_side(const struct dataset *d, const char *name, struct object *object)
{
	void *at = json_object_iter_at(d->sides, name);
	json_t *value = json_object_iter_value(at);
	struct fault fault;

	if (!at)
		return false;
	*object = (struct object){.bucket = d->bucket,
		.key = json_object_iter_key(at),
		.etag = json_string_value(json_array_get(value, 1)),
		.size = (uint64_t)json_integer_value(json_array_get(value, 0)),
		.piece = d->piece};
	if (store_is_url(name))
		object->bucket = store_bucket(d->finder.stores, object->key, &object->key, &fault);
	return object->bucket;
}

bool dataset_find_object(const void *dataset, const char *url, struct object *object)
{
	const struct dataset *d = dataset;
	size_t n = strlen(d->list.root);

	if (strncmp(url, d->list.root, n) != 0 || url[n] != '/')
		return find_side(d, url, object);
	int64_t shard = shard_list_find(&d->list, url + n + 1);
	const char *directory = dataset_shard_name(d, 0) - d->key_bytes;
	char key[2 * PATH_MAX];

	snprintf(key, sizeof(key), "%.*s%s", (int)d->key_bytes, directory, url + n + 1);
	if (shard < 0)
		return find_side(d, key, object);
	dataset_object(d, (uint64_t)shard, object);
	return true;
}

/* ---- for the next process ---- */

static bool pass(FILE *file, bool save, void *bytes, size_t n)
{
	return (save ? fwrite(bytes, 1, n, file) : fread(bytes, 1, n, file)) == n;
}

/* @at: of a pointer to an array of @n bytes. It may be NULL. */
static bool pass_array(FILE *file, bool save, void *at, size_t n)
{
	void **array = at;

	n = *array ? n : 0; /* after a load of the struct, too */
	if (!save)
		*array = n > 0 ? malloc(n) : NULL;
	return n == 0 || (*array && pass(file, save, *array, n));
}

static bool pass_text(FILE *file, bool save, char **text)
{
	size_t n = save && *text ? strlen(*text) + 1 : 0;

	return pass(file, save, &n, sizeof(n)) && pass_array(file, save, text, n);
}

/* The struct, and all that dataset_close() frees. */
static bool pass_dataset(FILE *f, bool save, struct dataset *d, char format[16])
{
	if (!pass(f, save, d, sizeof(*d)) || !pass(f, save, format, 16))
		return false;
	size_t n = d->table.shards;

	return pass_array(f, save, &d->table.tokens, n * sizeof(*d->table.tokens)) &&
	       pass_array(
		       f, save, &d->table.first_window, (n + 1) * sizeof(*d->table.first_window)) &&
	       pass_array(f, save, &d->entry, n * sizeof(*d->entry)) &&
	       pass_array(f, save, &d->list.paths, d->list.bytes) &&
	       pass_array(f, save, &d->list.at, n * sizeof(*d->list.at)) &&
	       pass_text(f, save, &d->list.root) && pass_text(f, save, &d->refused) &&
	       pass_text(f, save, &d->label_mask);
}

bool dataset_save(struct dataset *d, FILE *to)
{
	char format[16];

	assert(!d->objects);
	snprintf(format, sizeof(format), "%s", d->format->name);
	return pass_dataset(to, true, d, format);
}

bool dataset_from_saved(const struct opening *o)
{
	struct dataset *d = o->dataset;
	char format[16];

	if (!pass_dataset(o->saved, false, d, format)) {
		*d = (struct dataset){.config = o->source};
		return opening_refuse_memory(o);
	}
	d->config = o->source;
	d->format = shard_format(format);
	d->overlaps = NULL;
	d->samples = NULL;
	d->hint.column = o->source->column;
	d->hint.label_mask = d->label_mask;
	d->hint.indexes = mds_indexes_new(d->list.root);
	return d->hint.indexes || opening_refuse_memory(o);
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
