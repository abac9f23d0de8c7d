#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/format.h"
#include "daemon/shard/list.h"
#include "daemon/shard/mds_index.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool list_files(const struct opening *o, struct shard_list *list)
{
	struct fault fault;
	char path[PATH_MAX];

	if (store_is_url(o->source->path))
		return opening_refuse(o, o->source->path_line, "path",
			"%.80s: a dataset in a store needs a manifest; write one with `tokctl "
			"manifest %.80s FILE` and set manifest: FILE",
			o->source->path, o->source->path);
	if (!config_path(o->config, o->source->path, path, sizeof(path)))
		return opening_refuse(
			o, o->source->path_line, "path", "%s", strerror(ENAMETOOLONG));
	if (!shard_list_read(list, path, &fault))
		return opening_refuse(o, o->source->path_line, "path", "%s%s", fault.text,
			fault.error ? "; must be a readable file, a directory or a pattern" : "");
	if (list->count > 0)
		return true;
	shard_list_free(list);
	return opening_refuse(o, o->source->path_line, "path",
		"%s: no shards found; must have at least one", path);
}

/*
 * A file that no format recognises counts as flat. Among shards of another format it is most likely
 * one of them, with a lost index or a damaged header.
 */
static bool refuse_mixed(const struct opening *o, const struct shard_format *format,
	const char *path, const char *first)
{
	const struct shard_format *of_first = o->dataset->format;
	bool is_flat = format == &shard_flat;

	if (!is_flat && of_first != &shard_flat)
		return opening_refuse(o, o->source->path_line, "path",
			"%s: is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT, path,
			format->name, first, of_first->name);
	return opening_refuse(o, o->source->path_line, "path",
		"%s: " PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put it "
		"into a dataset of its own with format: flat",
		is_flat ? path : first, is_flat ? first : path,
		is_flat ? of_first->name : format->name);
}

/* All shards of a dataset have one format and width, so that a window is found by arithmetic. */
static bool agree(const struct opening *o, const struct shard_format *format,
	const struct shard_facts *shard, const char *path)
{
	struct dataset *d = o->dataset;
	bool mask = shard->mask != 0, bounds = shard->bounds != 0;

	if (!d->format) {
		d->format = format;
		d->token_bytes = shard->token_bytes;
		d->sample_tokens = shard->sample_tokens;
		snprintf(d->column, sizeof(d->column), "%s", shard->column);
		d->plain = true;
		d->masks = mask;
		d->bounds = bounds;
	}
	if (d->format != format)
		return refuse_mixed(o, format, path, dataset_shard_name(d, 0));
	if (d->token_bytes != shard->token_bytes)
		return opening_refuse(o, o->source->path_line, "path",
			"%s: has tokens of %" PRIu32
			" bytes, but the first shard, %s, has tokens of %" PRIu32
			"; all shards of a dataset must have one width",
			path, shard->token_bytes, dataset_shard_name(d, 0), d->token_bytes);
	if (!format->mixes_rows && d->sample_tokens != shard->sample_tokens)
		return opening_refuse(o, o->source->path_line, "path",
			"%s: has samples of %" PRIu64
			" tokens (0: no samples), but the first shard, %s, of %" PRIu64
			"; all shards of a dataset must have the same",
			path, shard->sample_tokens, dataset_shard_name(d, 0), d->sample_tokens);
	if (o->stream->loss_mask && (d->masks != mask || d->bounds != bounds))
		return opening_refuse(o, o->source->path_line, "path",
			"%s: has %s %s, but the first shard, %s, has %s; " PHRASE_ALL_OR_NONE, path,
			(d->masks != mask ? mask : bounds) ? "a" : "no",
			d->masks != mask ? "loss mask" : "list of document bounds",
			dataset_shard_name(d, 0),
			(d->masks != mask ? d->masks : d->bounds) ? "one" : "none");
	return true;
}

/* Adds a shard's facts to the dataset's. Called by several threads. */
static void gather(const struct opening *o, uint64_t s, const struct shard_facts *shard)
{
	struct dataset *d = o->dataset;

	if (shard->plain && shard->data_at < UINT32_MAX)
		d->entry[s].plain_at = 1 + (uint32_t)shard->data_at;
	dataset_keep_annotations(d, s, shard);
	pthread_mutex_lock(o->lock);
	d->marked |= (d->hint.documents && dataset_is_indexed(shard)) ||
		     (d->hint.loss_mask && (shard->mask || shard->bounds));
	if (!dataset_is_indexed(shard) && s < d->unindexed)
		d->unindexed = s;
	d->plain &= dataset_is_plain(d, s);
	d->is_signed |= shard->type == SHARD_I32;
	d->padding += shard->padding;
	if (d->format->mixes_rows && shard->sample_tokens == 0)
		d->sample_tokens = 0;
	if (shard->frame_bytes > d->frame_bytes)
		d->frame_bytes = shard->frame_bytes;
	if (shard->note[0] && (!d->note[0] || s < d->note_shard)) {
		memcpy(d->note, shard->note, sizeof(d->note));
		d->note_shard = s;
	}
	pthread_mutex_unlock(o->lock);
}

/*
 * A file that is not a shard. Among shards it is most likely a README or the index of another
 * loader, which `format: flat` would serve as tokens, so the remedy is a pattern without it.
 */
static bool refuse_unknown(const struct opening *o, const char *path, const struct fault *cause)
{
	return opening_refuse(o, o->source->path_line, "path", "%s: %s%s", path, cause->text,
		o->dataset->table.shards > 1
			? "; move it away, or set a pattern that matches only the shards"
		: shard_is_foreign(cause) ? ""
					  : "; " PHRASE_NOT_SHARD);
}

static bool describe_open(const struct opening *o, const struct shard_format *format, uint64_t s,
	int fd, const char *path)
{
	struct dataset *d = o->dataset;
	struct shard_facts shard;
	struct fault fault;
	struct stat st;

	if (fstat(fd, &st) != 0)
		return opening_refuse(o, o->source->path_line, "path", "%s: %s; must be readable",
			path, strerror(errno));
	format = shard_describe(format, path, fd, &d->hint, &shard, &fault);
	if (!format)
		return shard_is_unknown(&fault) ? refuse_unknown(o, path, &fault)
						: opening_refuse_shard(o, path, &fault);
	if (!agree(o, format, &shard, path))
		return false;
	gather(o, s, &shard);
	d->table.tokens[s] = shard.tokens;
	d->entry[s].file = dataset_identify(&st);
	return true;
}

static bool describe(const struct opening *o, const struct shard_format *format, uint64_t s)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(o->dataset, s, path, sizeof(path));
	/* O_NONBLOCK: open() would wait for the writer of a FIFO. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return opening_refuse(o, o->source->path_line, "path", "%s: %s; must be readable",
			path, bytes_open_fault(errno));
	bool fine = describe_open(o, format, s, fd, path);

	close(fd);
	return fine;
}

/* Shared by all threads. */
struct describing {
	const struct opening *opening;
	const struct shard_format *format;
};

static bool describe_each(const struct parallel *p, struct fault *fault)
{
	const struct describing *all = p->context;
	struct opening o = *all->opening;

	o.fault = fault;
	return describe(&o, all->format, p->i + 1);
}

static bool describe_shards(const struct opening *o, const struct shard_format *format)
{
	struct dataset *d = o->dataset;
	struct describing all = {o, format};
	uint64_t n = d->table.shards - 1;

	/* The first shard sets the format and width that all must have. */
	if (!describe(o, format, 0) ||
		parallel_for(n, parallel_reads(n), describe_each, &all, o->fault) < n)
		return false;
	if (!d->plain)
		dataset_not_plain(d);
	dataset_settle_rows(d);
	return true;
}

/* Shards share indexes, which are kept for opening them. */
static bool describe_with_indexes(const struct opening *o, const struct shard_format *format)
{
	struct dataset *d = o->dataset;

	d->table.tokens = calloc(d->table.shards, sizeof(*d->table.tokens));
	if (!d->table.tokens)
		return opening_refuse_memory(o);
	d->hint.indexes = mds_indexes_new(d->root);
	if (!d->hint.indexes)
		return opening_refuse_memory(o);
	return describe_shards(o, format);
}

bool dataset_from_files(const struct opening *o)
{
	const struct shard_format *format;
	struct shard_list list = {0};

	return opening_format(o, &format) && list_files(o, &list) && opening_allocate(o, &list) &&
	       describe_with_indexes(o, format);
}
