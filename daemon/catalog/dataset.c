/* What is asked of a dataset once it is open: its shards, and whether a file still is the one that
 * was listed. */
#include "daemon/catalog/dataset_private.h"
#include "daemon/catalog/sample.h"

#include "daemon/shard/list.h"
#include "daemon/shard/memo.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { /* users are told what frames cost that are as large as both */
	LARGE_FRAME_BYTES = 1 << 20,
	LARGE_FRAME_WINDOWS = 16,
	BOUNDS_OPEN = 500, /* and of more lists of bounds than this */
};

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

static uint32_t beside_of(const struct shard_facts *facts)
{
	return facts->index ^ facts->bounds ^ (facts->mask << 16 | facts->mask >> 16);
}

void dataset_keep_annotations(const struct dataset *d, uint64_t s, const struct shard_facts *facts)
{
	uint32_t beside = beside_of(facts);

	if (beside) /* of shards that have nothing no memory is touched */
		d->beside[s] = beside;
	if (d->indexed)
		d->indexed[s] = dataset_is_indexed(facts) ? DATASET_INDEXED : DATASET_UNINDEXED;
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
	};
}

void dataset_close(struct dataset *dataset)
{
	free(dataset->table.tokens);
	free(dataset->table.first_window);
	free(dataset->identity);
	free(dataset->beside);
	free(dataset->plain_at);
	free(dataset->indexed);
	free(dataset->sizes);
	free(dataset->types);
	free(dataset->unsampled);
	free(dataset->refused);
	free(dataset->data_at_of);
	free(dataset->label_mask);
	free(dataset->root);
	free(dataset->paths);
	free(dataset->path_at);
	memo_free(dataset->hint.memo);
}

/* ---- shards by number and by name ---- */

const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard)
{
	assert(shard < dataset->table.shards);
	return dataset->paths + dataset->path_at[shard];
}

/* A dataset keeps a list's parts as its own. */
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
		path[0] = 0; /* open() then says ENOENT; a path cut short might be another file */
}

int64_t dataset_find_shard(const struct dataset *dataset, const char *name)
{
	struct shard_list list = list_of(dataset);

	return shard_list_find(&list, name);
}

bool dataset_same_shard(const struct dataset *dataset, uint64_t shard, const struct stat *st,
	char *why, size_t why_bytes)
{
	const struct dataset_identity *listed = &dataset->identity[shard];
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", listed->bytes, (uint64_t)st->st_size},
		{"inode", listed->inode, st->st_ino},
		{"mtime (ns)", listed->mtime_ns, mtime_ns(st)},
	};

	assert(shard < dataset->table.shards);
	if (dataset->sizes && listed->inode == 0)
		return true;
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (facts[i].was == facts[i].is)
			continue;
		snprintf(why, why_bytes,
			"%s was %" PRIu64 " when the shard was listed and is %" PRIu64 " now",
			facts[i].what, facts[i].was, facts[i].is);
		return false;
	}
	return true;
}

/* A mask or an index that is gone since would go unnoticed: there are shards without. */
static bool same_annotations(const struct dataset *d, uint64_t shard,
	const struct shard_facts *facts, char *why, size_t why_bytes)
{
	enum dataset_indexed indexed = d->indexed ? d->indexed[shard] : DATASET_UNKNOWN;
	const struct {
		const char *what;
		bool asked, was, is;
	} annotations[] = {
		{"loss mask", d->hint.loss_mask, d->masks, facts->mask},
		{"list of document bounds", d->hint.loss_mask, d->bounds, facts->bounds},
		{"index of documents", indexed != DATASET_UNKNOWN, indexed == DATASET_INDEXED,
			dataset_is_indexed(facts)},
	};

	for (size_t i = 0; i < sizeof(annotations) / sizeof(annotations[0]); i++)
		if (annotations[i].asked && annotations[i].was != annotations[i].is)
			return bytes_why(why, why_bytes,
				"had %s %s when it was listed and has %s now",
				annotations[i].was ? "its" : "no", annotations[i].what,
				annotations[i].is ? "one" : "none");
	return true;
}

/* What lies beside a shard says what its tokens are for, as the shard what they are. */
static bool same_beside(const struct dataset *d, uint64_t shard, const struct shard_facts *facts,
	char *why, size_t why_bytes)
{
	const char *index = facts->bounds		   ? "list of document bounds"
			    : facts->index || !facts->mask ? "index"
							   : "";

	if ((d->sizes && d->identity[shard].inode == 0) || beside_of(facts) == d->beside[shard])
		return true;
	return bytes_why(why, why_bytes,
		"its %s%s%s is not the file that it was when the shard was listed, by inode, size "
		"or mtime",
		index, *index && facts->mask ? " or " : "", facts->mask ? "loss mask" : "");
}

/* What was listed was kept as a number alone. */
static bool as_listed(const struct dataset *dataset, uint64_t shard,
	const struct shard_facts *facts, char *why, size_t why_bytes)
{
	uint64_t tokens = dataset->table.tokens[shard];

	return (facts->tokens == tokens && facts->token_bytes == dataset->token_bytes) ||
	       bytes_why(why, why_bytes,
		       "had %" PRIu64 " tokens when the shard was listed and has %" PRIu64 " now",
		       tokens, facts->tokens);
}

static bool as_in_manifest(const struct dataset *d, uint64_t shard,
	const struct shard_format *format, const struct shard_facts *facts, const struct stat *st,
	char *why, size_t why_bytes)
{
	const struct manifest_shard listed = {d->format, (enum shard_type)d->types[shard],
		d->table.tokens[shard], d->sizes[shard], d->sample_tokens, d->frame_bytes};
	const struct manifest_shard found = {format, facts->type, facts->tokens,
		(uint64_t)st->st_size, facts->sample_tokens, facts->frame_bytes};

	size_t n;

	if (manifest_same(&listed, &found, why, why_bytes))
		return true;
	n = strlen(why);
	if (strncmp(why, "dtype ", 6) == 0 && d->hint.has_type && found.type == d->hint.type)
		snprintf(why + n, why_bytes - n, ", as `dtype` of the config has it");
	return false;
}

/* A manifest's shard is recognised anew, if the config does not say what it is: flat files may be
 * anything.
 */
static bool describe_listed(const struct dataset *d, uint64_t shard, const char *path, int fd,
	const struct shard_hint *hint, struct shard_facts *facts, char *why, size_t why_bytes)
{
	const struct shard_format *format = d->sizes ? shard_format(d->config->format) : d->format;
	struct stat st;

	if (fstat(fd, &st) != 0)
		return bytes_why(why, why_bytes, "%s", strerror(errno));
	if (d->sizes && d->sizes[shard] != (uint64_t)st.st_size) /* what is in it matters no more */
		return as_in_manifest(d, shard, d->format, facts, &st, why, why_bytes);
	format = shard_describe(format, path, fd, hint, facts, why, why_bytes);
	if (!format)
		return false;
	if (!d->sizes)
		return as_listed(d, shard, facts, why, why_bytes);
	return as_in_manifest(d, shard, format, facts, &st, why, why_bytes);
}

/* A manifest's shard is as listed: from now on it is this file, and nobody needs to look into it
 * again. */
static void remember(
	const struct dataset *d, uint64_t shard, int fd, const struct shard_facts *facts)
{
	struct stat st;

	if (!d->sizes || fstat(fd, &st) != 0)
		return;
	d->identity[shard] = dataset_identify(&st);
	dataset_keep_annotations(d, shard, facts);
	if (facts->plain && facts->data_at < UINT32_MAX)
		d->plain_at[shard] = (uint32_t)facts->data_at + 1;
}

/* Formats take a header that cannot be read for one that is not there. Leaves errno as
 * dataset_open_shard() says. */
static void tell_error(char *why, size_t why_bytes)
{
	static const int errors[] = {EIO, ESTALE, ETIMEDOUT, ENOMEM, EMFILE, ENFILE};
	int error = 0;

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		error = errno == errors[i] ? errno : error;
	if (error && !strstr(why, strerror(error)))
		snprintf(why, why_bytes, "%s while it was opened", strerror(error));
	errno = error;
}

struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, char *why, size_t why_bytes)
{
	struct shard_hint hint = dataset->hint;
	struct shard_facts facts = {0};
	struct shard *opened = NULL;

	hint.frames = frames;
	errno = 0;
	if (describe_listed(dataset, shard, path, fd, &hint, &facts, why, why_bytes) &&
		same_annotations(dataset, shard, &facts, why, why_bytes) &&
		same_beside(dataset, shard, &facts, why, why_bytes))
		opened = shard_open(dataset->format, path, fd, &hint, &facts, why, why_bytes);
	if (opened && !sample_opened(dataset, shard, opened, why, why_bytes)) {
		shard_close(opened);
		opened = NULL;
		errno = 0;
	}
	if (opened)
		remember(dataset, shard, fd, &opened->facts);
	else
		tell_error(why, why_bytes);
	return opened;
}

/* ---- what users should know ---- */

uint64_t dataset_frames_budget(const struct config *config)
{
	return config->memory_bytes / 4;
}

/* A frame is decoded whole for whatever is wanted of it; windows of a block share it, others do
 * not. */
static bool costly_frames(const struct dataset *d, char *text, size_t text_bytes)
{
	uint64_t window = d->table.window_tokens * d->token_bytes;

	if (d->config->shuffle != ORDER_GLOBAL || d->frame_bytes < LARGE_FRAME_BYTES ||
		d->frame_bytes / LARGE_FRAME_WINDOWS < window)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from anywhere, and its largest zstd frame decodes "
		"to %" PRIu64 " KiB: for each window of %" PRIu64 " bytes up to %" PRIu64
		" times as much is decoded; write shuffle: block, or compress in frames of 256 KiB",
		d->frame_bytes >> 10, window, d->frame_bytes / window);
	return true;
}

/* A list of bounds is unpacked whole whenever its shard is opened, and so many shards are open at a
 * time. */
static bool costly_bounds(const struct dataset *d, char *text, size_t text_bytes)
{
	if (!d->bounds || d->config->shuffle != ORDER_GLOBAL || d->table.shards <= BOUNDS_OPEN)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from any of its %" PRIu64
		" shards, and of their lists of document bounds (.csv.gz) some %d are kept at a "
		"time: most "
		"windows have a whole list unpacked; write shuffle: block",
		d->table.shards, BOUNDS_OPEN);
	return true;
}

static bool manifest_note(const struct dataset *d, char *text, size_t text_bytes)
{
	struct stat st;

	if (!d->sizes)
		return false;
	if (stat(d->root, &st) != 0)
		snprintf(text, text_bytes,
			"its shards are as %.200s says, below %.200s, which cannot be read now: %s",
			d->config->manifest, d->root, strerror(errno));
	else
		snprintf(text, text_bytes,
			"its shards are as %.200s says; none was looked at, each is compared when "
			"it is read "
			"first",
			d->config->manifest);
	return true;
}

bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes)
{
	if (i == 0 && dataset->note[0])
		snprintf(text, text_bytes, "shard %s (the first with something to say): %s",
			dataset_shard_name(dataset, dataset->note_shard), dataset->note);
	if (i == 3 && dataset->refused)
		snprintf(text, text_bytes, "its stream will stop there: %s", dataset->refused);
	return i == 3	? dataset->refused != NULL
	       : i == 0 ? dataset->note[0] != 0
	       : i == 1 ? (costly_frames(dataset, text, text_bytes) ||
				  costly_bounds(dataset, text, text_bytes))
			: i == 2 && manifest_note(dataset, text, text_bytes);
}
