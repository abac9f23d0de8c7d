/* Datasets: their shards' facts, and whether shards are still what was listed, by name and
 * identity, and by their facts when opened. */
#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REMARKS_MOST = 8 }; /* of shards of a dataset */

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

/* Whether a shard with @f may follow the first one. */
static bool fits_first(const struct dataset *d, const struct shard_format *format,
	const struct shard_facts *f, struct fault *fault)
{
	bool flat = format == &shard_flat || d->format == &shard_flat;
	char is[24], first[24];
	const struct {
		const char *field, *is, *first;
		bool same;
		const char *remedy;
	} facts[] = {
		{"format", format->name, d->format->name, format == d->format,
			flat ? "if the index of one is lost, or its header is damaged, restore "
			       "that first; otherwise "
			     : ""},
		{"dtype", shard_type_name(f->type),
			shard_type_name((enum shard_type)d->entry[0].type),
			f->token_bytes == d->token_bytes, ""},
		{"column", f->column, d->column, strcmp(f->column, d->column) == 0,
			"set column: to the one with the tokens, or "},
		{"sample_tokens", is, first,
			f->sample_tokens == d->sample_tokens || format->mixes_rows, ""},
	};

	snprintf(is, sizeof(is), "%" PRIu64, f->sample_tokens);
	snprintf(first, sizeof(first), "%" PRIu64, d->sample_tokens);
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		if (!facts[i].same)
			return fault_set(fault, FAULT_DATA, "",
				"%s is %s, but that of the first shard, %.79s, is %s; must be the "
				"same in all shards of a dataset; %smove it away, or give it a "
				"dataset of its own",
				facts[i].field, facts[i].is, shard_list_name(&d->list, 0),
				facts[i].first, facts[i].remedy);
	return true;
}

/* As struct entry has it. */
static uint32_t plain_at(const struct shard_facts *f)
{
	return f->plain && f->data_at < UINT32_MAX ? (uint32_t)f->data_at + 1 : 0;
}

bool dataset_keep(struct dataset *d, uint64_t s, const struct shard_format *format,
	const struct shard_facts *f, struct fault *fault)
{
	if (!d->format) {
		d->format = format;
		d->token_bytes = f->token_bytes;
		d->sample_tokens = f->sample_tokens;
		memcpy(d->column, f->column, sizeof(d->column));
	} else if (!fits_first(d, format, f, fault)) {
		return false;
	}
	if (f->sample_tokens != d->sample_tokens) {
		uint64_t window = d->hint.window_tokens;

		if (d->odd == 0 && (f->sample_tokens == window || d->sample_tokens == window))
			d->odd = s;
		d->sample_tokens = 0;
	}
	d->frame_bytes = f->frame_bytes > d->frame_bytes ? f->frame_bytes : d->frame_bytes;
	d->is_signed |= f->type == SHARD_I32;
	d->table.tokens[s] = f->tokens;
	d->entry[s] = (struct entry){
		.type = (uint8_t)f->type,
		.plain_at = plain_at(f),
	};
	return true;
}

/* ---- in a store ---- */

struct object dataset_object(const struct dataset *dataset, uint64_t shard)
{
	const char *name = shard_list_name(&dataset->list, shard), *etag = name + strlen(name) + 1;

	assert(dataset->bucket);
	return (struct object){
		.bucket = dataset->bucket,
		.key = name - dataset->key_bytes,
		.etag = *etag ? etag : NULL,
		.size = dataset->entry[shard].bytes,
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
		*object = dataset_object(d, (uint64_t)shard);
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

/* ---- identities ---- */

#define LISTED "the shard was listed"

bool dataset_identical(uint64_t was, uint64_t is, const char *when, struct fault *fault)
{
	return was == is || fault_set(fault, FAULT_CHANGED, "",
				    "changed after %s: inode, size or mtime differs", when);
}

/* Whether a manifest's shard was not opened before. */
static bool is_new(const struct dataset *d, uint64_t shard)
{
	return d->listed && d->entry[shard].id == 0;
}

bool dataset_same_shard(
	const struct dataset *d, uint64_t shard, const struct stat *st, struct fault *fault)
{
	const struct entry *e = &d->entry[shard];

	assert(shard < d->table.shards);
	if (!is_new(d, shard))
		return dataset_identical(e->id, bytes_id(st), LISTED, fault);
	return (uint64_t)st->st_size == e->bytes || /* no need to read it */
	       dataset_agrees(
		       d, shard, d->format, &(struct shard_facts){0}, (uint64_t)st->st_size, fault);
}

/* ---- side files ---- */

/* A hash of the identities of the shard's side files; 0: there are none. */
static uint64_t hash_sides(const struct shard_facts *facts)
{
	return facts->index ^ facts->bounds ^ (facts->mask << 32 | facts->mask >> 32);
}

static bool same_sides(const struct entry *was, const struct shard_facts *is, struct fault *fault)
{
	return was->sides == hash_sides(is) ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "its side files (index, document bounds, loss mask) changed after the "
		       "shard was listed: one was added, removed or replaced");
}

/* The same of the shard at @path, as they are now. */
static bool current_sides(
	const struct dataset *d, uint64_t shard, const char *path, struct fault *fault)
{
	const struct shard_hint *hint = &d->hint;
	bool bounds = hint->documents || hint->loss_mask;
	const struct shard_facts facts = {
		.index = side_id(SIDE_INDEX, d->format, hint, path),
		.bounds = bounds ? side_id(SIDE_BOUNDS, d->format, hint, path) : 0,
		.mask = hint->loss_mask ? side_id(SIDE_MASK, d->format, hint, path) : 0,
	};

	/* Nothing follows from one that cannot be looked at now. */
	return facts.index == 1 || facts.bounds == 1 || facts.mask == 1 ||
	       same_sides(&d->entry[shard], &facts, fault) || fault_prefix(fault, "%s: ", path);
}

/* ---- all shards ---- */

static bool is_gone(int error)
{
	return error == ENOENT || error == ENOTDIR;
}

static bool same_file(uint64_t id, const char *path, struct fault *fault)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return !is_gone(errno) ||
		       fault_set(fault, FAULT_CHANGED, "", "%s: %s", path, strerror(errno));
	return dataset_identical(id, bytes_id(&st), LISTED, fault) ||
	       fault_prefix(fault, "%s: ", path);
}

struct lists {
	const struct dataset *was;
	const struct shard_list *is;
};

static bool same_shard(const struct parallel *p, struct fault *fault)
{
	const struct lists *lists = p->context;
	const struct dataset *d = lists->was;
	const struct shard_list *was = &d->list, *is = lists->is;
	char path[PATH_MAX + 1];

	/* The lists are sorted: the lesser name is in one of them only. */
	int order = (p->i >= was->count) - (p->i >= is->count);

	if (order == 0)
		order = strcmp(shard_list_name(was, p->i), shard_list_name(is, p->i));
	if (order != 0)
		return fault_set(fault, FAULT_CHANGED, "",
			"%s: had %" PRIu64 " shards and has %" PRIu64
			"; the first that differs is %s",
			was->root, was->count, is->count,
			shard_list_name(order < 0 ? was : is, p->i));
	shard_list_path(&d->list, p->i, path, sizeof(path));
	return same_file(d->entry[p->i].id, path, fault) && current_sides(d, p->i, path, fault);
}

uint64_t dataset_manifest_id(const struct dataset *d)
{
	const char *path = d->config->manifest, *key;
	char etag[STORE_ETAG_BYTES];
	struct fault fault;
	uint64_t size;

	if (!url_text_is(path))
		return bytes_id_at(NULL, path);
	const struct store_bucket *bucket = store_bucket(d->finder.stores, path, &key, &fault);

	return bucket && store_head(d->finder.stores, bucket, key, &size, etag, &fault)
		       ? order_derive(size, order_name_hash(etag, strlen(etag)))
		       : 1;
}

static bool same_manifest(const struct dataset *d, struct fault *fault)
{
	uint64_t id = dataset_manifest_id(d);

	return id == d->manifest || id == 1 || d->manifest == 1 ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "%s: changed after the manifest was read, or is gone", d->config->manifest);
}

bool dataset_current(const struct dataset *d, struct fault *fault)
{
	struct shard_list list = {0};
	struct lists lists = {d, &list};

	if (d->listed)
		return same_manifest(d, fault);
	if (!shard_list_read(&list, d->config->path, fault))
		return !is_gone(fault->error);
	uint64_t n = list.count > d->list.count ? list.count : d->list.count;
	bool same = parallel_for(n, PARALLEL_READS, same_shard, &lists, fault) == n;

	shard_list_free(&list);
	return same;
}

/* ---- annotations ---- */

/* Does it say where documents start? Samples count as documents. */
static bool is_indexed(const struct shard_facts *f)
{
	return f->documents != SHARD_UNKNOWN || f->bounds || f->sample_tokens > 0;
}

/* Annotations that are requested come from the same kind of side file in all shards. */
static bool has_alike(const struct dataset *d, const struct shard_facts *f, struct fault *fault)
{
	const struct {
		bool asked, is, first;
		const char *what;
	} sides[] = {
		{d->hint.loss_mask, f->mask, d->masks, "loss mask"},
		{d->hint.loss_mask, f->bounds, d->bounds, "list of document bounds"},
		{d->hint.documents, is_indexed(f), d->indexed, "list of where documents start"},
	};

	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
		if (sides[i].asked && sides[i].is != sides[i].first)
			return fault_set(fault, FAULT_CHANGED, "",
				"has %s %s, unlike the first shard, %s; " PHRASE_ALL_OR_NONE,
				sides[i].is ? "a" : "no", sides[i].what,
				shard_list_name(&d->list, 0));
	return true;
}

/* ---- facts ---- */

/* Was another shard remarked with the same text, but for its numbers? */
static bool is_remarked(const struct dataset *d, const char *note)
{
	const char *words = note + strlen(note);

	while (words > note && !isdigit((unsigned char)words[-1]))
		words--;
	words = *words ? words : note;
	for (uint32_t r = 0; r < d->remarks; r++)
		if (strstr(d->remark[r].text, words))
			return true;
	return d->remarks >= REMARKS_MOST;
}

bool dataset_keep_file(
	struct dataset *d, uint64_t s, const struct shard *shard, struct fault *fault)
{
	const struct shard_facts *facts = &shard->facts;

	if (!d->format) {
		d->plain = true;
		d->masks = facts->mask;
		d->bounds = facts->bounds;
		d->indexed = is_indexed(facts);
	}
	if (!dataset_keep(d, s, shard->format, facts, fault) || !has_alike(d, facts, fault))
		return false;
	d->entry[s].bytes = shard->bytes->stored;
	d->entry[s].id = shard->bytes->id;
	d->entry[s].sides = hash_sides(facts);
	d->files += order_derive(s, d->entry[s].bytes, shard->bytes->mtime_ns, facts->index);
	d->side_files += order_derive(s, facts->bounds, facts->mask);
	d->marked |= (d->hint.documents && is_indexed(facts)) ||
		     (d->hint.loss_mask && (facts->mask || facts->bounds));
	d->plain &= dataset_is_plain(d, s);
	d->padding += facts->padding;
	if (facts->note[0] && !is_remarked(d, facts->note))
		dataset_remark(d, REMARK_DOUBT, "shard %s (the first with this remark): %s",
			shard_list_name(&d->list, s), facts->note);
	return true;
}

bool dataset_agrees(const struct dataset *d, uint64_t shard, const struct shard_format *format,
	const struct shard_facts *f, uint64_t size, struct fault *fault)
{
	const struct entry *e = &d->entry[shard];
	/* Samples are joined if those of another shard are shorter or longer than a window. */
	bool joined = d->format->mixes_rows && d->sample_tokens == 0;
	const struct {
		const char *field, *names[2]; /* both or none */
		uint64_t listed, found;
	} facts[] = {
		{"size", {NULL}, e->bytes, size},
		{"format", {d->format->name, format->name}, 0, d->format != format},
		{"dtype", {shard_type_name((enum shard_type)e->type), shard_type_name(f->type)},
			e->type, f->type},
		{"column", {d->column[0] ? d->column : "not", f->column[0] ? f->column : "not"}, 0,
			strcmp(d->column, f->column) != 0},
		{"tokens", {NULL}, d->table.tokens[shard], f->tokens},
		{"sample_tokens", {NULL}, d->sample_tokens, joined ? 0 : f->sample_tokens},
		{"the largest frame_bytes", {NULL}, d->frame_bytes,
			f->frame_bytes > d->frame_bytes ? f->frame_bytes : d->frame_bytes},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		char was[24], is[24];

		snprintf(was, sizeof(was), "%" PRIu64, facts[i].listed);
		snprintf(is, sizeof(is), "%" PRIu64, facts[i].found);
		if (facts[i].listed != facts[i].found)
			return fault_set(fault, FAULT_CHANGED, "",
				"%s is %s %s and %s in the file%s", facts[i].field,
				facts[i].names[0] ? facts[i].names[0] : was,
				d->listed ? "in the manifest" : "as listed",
				facts[i].names[1] ? facts[i].names[1] : is,
				d->listed ? "; if only the manifest is old, write it again" : "");
	}
	return true;
}

struct shard *dataset_open_shard(const struct dataset *d, uint64_t shard, const char *path, int fd,
	struct frames *frames, struct fault *fault)
{
	struct entry *e = &d->entry[shard];
	/* A manifest's shard is recognised again unless the config sets its format: any file can be
	 * read as flat. */
	const struct shard_format *format = d->listed ? shard_format(d->config->format) : d->format;
	struct shard_hint hint = d->hint;

	hint.frames = frames;
	if (d->listed && !hint.has_type) /* otherwise it also says how wide tokens are served */
		hint.type = (enum shard_type)e->type;
	struct shard *opened = shard_open(format, path, fd, &hint, true, fault);

	if (!opened)
		return NULL;
	const struct shard_facts *facts = &opened->facts;
	const struct bytes *b = opened->bytes;
	bool same = dataset_agrees(d, shard, opened->format, facts, b->stored, fault);

	/* Equal types are served in equal widths: see shard_served(). */
	assert(!same || facts->token_bytes == d->token_bytes);
	if (same && !is_new(d, shard))
		same = dataset_identical(e->id, b->id, LISTED, fault) &&
		       same_sides(e, facts, fault);
	if (!same || !has_alike(d, facts, fault)) {
		shard_close(opened);
		return NULL;
	}
	if (d->listed) { /* it is not compared again */
		e->id = b->id;
		e->sides = hash_sides(facts);
		e->plain_at = plain_at(facts);
	}
	return opened;
}

/* ---- for the next process ---- */

/* Writes the array at *@pointer to @file, or reads it to new memory. */
static bool pass(void *pointer, size_t bytes, FILE *file, bool save)
{
	void **array = pointer;

	if (save)
		return fwrite(*array, 1, bytes, file) == bytes;
	*array = malloc(bytes + 1);
	return *array && fread(*array, 1, bytes, file) == bytes;
}

/* The same of all arrays, which dataset_close() frees. */
static bool pass_arrays(struct dataset *d, size_t root_bytes, FILE *file, bool save)
{
	size_t n = d->table.shards;
	bool fine = pass(&d->table.tokens, n * sizeof(*d->table.tokens), file, save);

	fine &= pass(&d->table.first_window, (n + 1) * sizeof(*d->table.first_window), file, save);
	fine &= pass(&d->entry, n * sizeof(*d->entry), file, save);
	fine &= pass(&d->list.root, root_bytes, file, save);
	fine &= pass(&d->list.paths, d->list.bytes, file, save);
	fine &= pass(&d->list.at, n * sizeof(*d->list.at), file, save);
	fine &= pass(&d->remark, d->remarks * sizeof(*d->remark), file, save);
	return fine;
}

/* The head of a saved dataset; its arrays follow. */
struct saved {
	struct dataset dataset;
	char format[16];
	size_t root_bytes;
};

bool dataset_save(struct dataset *d, FILE *to)
{
	struct saved saved = {.dataset = *d, .root_bytes = strlen(d->list.root) + 1};

	assert(!d->bucket);
	snprintf(saved.format, sizeof(saved.format), "%s", d->format->name);
	return fwrite(&saved, sizeof(saved), 1, to) == 1 &&
	       pass_arrays(d, saved.root_bytes, to, true);
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
	d->hint.indexes = NULL;
	return pass_arrays(d, saved.root_bytes, from, false) || fault_memory(fault);
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
