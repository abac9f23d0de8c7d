#include "daemon/catalog/opening.h"

#include "daemon/shard/list.h"
#include "daemon/shard/mds_index.h"
#include "daemon/shard/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec;
}

struct dataset_identity dataset_identify(const struct stat *st)
{
	return (struct dataset_identity){
		.inode = st->st_ino, .mtime_ns = mtime_ns(st), .bytes = (uint64_t)st->st_size};
}

bool dataset_is_indexed(const struct shard_facts *facts)
{
	return facts->documents != SHARD_UNKNOWN || facts->bounds || facts->sample_tokens > 0;
}

uint32_t dataset_sides(const struct shard_facts *facts)
{
	return facts->index ^ facts->bounds ^ (facts->mask << 16 | facts->mask >> 16);
}

void dataset_keep_annotations(const struct dataset *d, uint64_t s, const struct shard_facts *facts)
{
	uint32_t sides = dataset_sides(facts);

	if (sides) /* do not touch the zeroed memory of shards without side files */
		d->entry[s].sides = sides;
	if (d->hint.documents)
		d->entry[s].indexed =
			dataset_is_indexed(facts) ? DATASET_INDEXED : DATASET_UNINDEXED;
}

void dataset_settle_rows(struct dataset *d)
{
	if (d->format->mixes_rows && d->sample_tokens == 0)
		d->hint.joined = true;
}

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
	if (a->list != b->list)
		return false;

	char *x = realpath(a->root, NULL), *y = realpath(b->root, NULL);
	bool same = strcmp(x ? x : a->root, y ? y : b->root) == 0;

	free(x);
	free(y);
	return same;
}

void dataset_check(const struct dataset *d)
{
	assert(d->windows <= d->table.windows);
	assert(d->format && d->table.shards > 0 && d->table.tokens && d->table.first_window);
	assert(d->token_bytes == 2 || d->token_bytes == 4);
	assert(d->limit >> 8 * d->token_bytes == 0);
	assert(!d->is_signed || (d->token_bytes == 4 && d->limit > 0));
	assert(!d->plain || d->token_bytes >= d->hint.token_bytes);
	assert(d->entry && (!d->listed || !d->plain));
	assert(!d->objects || (d->listed && d->hint.objects));
	assert(d->unindexed <= d->table.shards);
	assert(!d->note[0] || d->note_shard < d->table.shards);
}

void dataset_not_plain(struct dataset *d)
{
	d->plain = false;
	for (uint64_t s = 0; s < d->table.shards; s++)
		d->entry[s].plain_at = 0;
}

void dataset_widen(struct dataset *d, uint32_t token_bytes)
{
	assert(token_bytes > d->token_bytes);
	assert(!d->is_signed); /* signed: i32, already the widest */
	d->token_bytes = token_bytes;
	d->hint.token_bytes = token_bytes;
	dataset_not_plain(d);
}

void dataset_close(struct dataset *dataset)
{
	free(dataset->table.tokens);
	free(dataset->table.first_window);
	free(dataset->entry);
	free(dataset->refused);
	free(dataset->label_mask);
	free(dataset->root);
	free(dataset->paths);
	free(dataset->path_at);
	if (dataset->objects)
		shard_list_free(&dataset->objects->sides);
	free(dataset->objects);
	mds_indexes_free(dataset->hint.indexes);
}

/* ---- shards by number and by name ---- */

const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard)
{
	assert(shard < dataset->table.shards);
	return dataset->paths + dataset->path_at[shard];
}

/* A dataset owns the parts of a list. */
static struct shard_list list_of(const struct dataset *d)
{
	return (struct shard_list){
		.root = d->root, .paths = d->paths, .at = d->path_at, .count = d->table.shards};
}

void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes)
{
	struct shard_list list = list_of(dataset);

	assert(shard < list.count);
	if (!shard_list_path(&list, shard, path, path_bytes) && path_bytes > 0)
		path[0] =
			0; /* open("") fails with ENOENT; a truncated path might be another file */
}

int64_t dataset_find_shard(const struct dataset *dataset, const char *name)
{
	struct shard_list list = list_of(dataset);

	return shard_list_find(&list, name);
}

bool dataset_identical(const struct dataset_identity *listed, const char *when,
	const struct stat *st, struct fault *fault)
{
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", listed->bytes, (uint64_t)st->st_size},
		{"inode", listed->inode, st->st_ino},
		{"mtime (ns)", listed->mtime_ns, mtime_ns(st)},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (facts[i].was == facts[i].is)
			continue;
		return fault_set(fault, FAULT_CHANGED, "",
			"%s was %" PRIu64 " when %s and is %" PRIu64 " now", facts[i].what,
			facts[i].was, when, facts[i].is);
	}
	return true;
}

bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault)
{
	const struct dataset_identity *listed = &dataset->entry[shard].file;

	assert(shard < dataset->table.shards);
	return (dataset->listed && listed->inode == 0) ||
	       dataset_identical(listed, "the shard was listed", st, fault);
}

uint64_t dataset_frames_budget(const struct config *config)
{
	return config->memory_bytes / 4;
}

/* ---- tokens that may not be served ---- */

uint64_t vocab_first_refused(const struct dataset *d, const void *tokens, uint64_t n)
{
	return d->limit == 0
		       ? n
		       : tokens_first_above(tokens, n, d->token_bytes, (uint32_t)(d->limit - 1));
}

bool vocab_refuse(const struct dataset *d, uint64_t token, const void *tokens, uint64_t i,
	struct fault *fault)
{
	uint32_t value = tokens_value(tokens, i, d->token_bytes);

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
