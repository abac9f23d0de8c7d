/*
 * Finds the shards of a dataset: those that its manifest lists, or the files at its path, which are
 * all opened once. Either way their facts are kept in a struct manifest.
 */
#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/format.h"
#include "daemon/shard/mds_index.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks up the dataset's `format`; *@format is NULL for auto. False: o->fault. */
static bool find_format(const struct opening *o, const struct shard_format **format)
{
	char names[SHARD_NAMES_BYTES];

	*format = shard_format(o->source->format);
	return *format || strcmp(o->source->format, "auto") == 0 ||
	       opening_refuse(o, "format", "'%.40s' is unknown; must be auto or one of: %s",
		       o->source->format, shard_format_names(names, sizeof(names)));
}

/* Writes the absolute path, or the URL, of the value of @key. False: o->fault. */
static bool absolute(
	const struct opening *o, const char *key, const char *written, char path[PATH_MAX])
{
	return config_path(o->config, written, path, PATH_MAX) ||
	       opening_refuse(o, key, "%s", strerror(ENAMETOOLONG));
}

/* ---- from a manifest ---- */

bool opening_manifest(const struct opening *o, struct manifest *m)
{
	const struct config_dataset *source = o->source;
	struct stat st;
	char path[PATH_MAX], root[PATH_MAX];
	const struct shard_format *format;
	struct shard_hint hint = opening_hint(o);
	struct fault fault;

	if (!find_format(o, &format) || !absolute(o, "manifest", source->manifest, path) ||
		!absolute(o, "path", source->path, root))
		return false;
	/* The directory need not exist until shards are read. A path with wildcards is a pattern
	 * only if there is no such file. */
	if (!store_is_url(root) && (stat(root, &st) == 0 ? !S_ISDIR(st.st_mode)
							 : strpbrk(source->path, "*?[") != NULL))
		return opening_refuse(o, "path",
			"%.80s: is not a directory; with a manifest, must be the directory that "
			"the paths in %s are relative to",
			source->path, path);
	if (o->dataset && stat(path, &st) == 0)
		o->dataset->manifest = dataset_identify(&st);
	if (manifest_read(m, path, root, o->stores, format, &hint, NULL, NULL, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return opening_refuse(o, "manifest",
			"%s; must be a file written by `tokctl manifest`", fault.text);
	*o->fault = fault;
	return false;
}

bool dataset_manifest(const struct config *config, struct stores *stores,
	const struct config_stream *stream, const struct config_dataset *source,
	struct manifest *manifest, struct fault *fault)
{
	const struct opening o = {.config = config,
		.stream = stream,
		.source = source,
		.stores = stores,
		.fault = fault};

	return opening_manifest(&o, manifest);
}

/* ---- files at a path ---- */

static bool list_files(const struct opening *o, struct shard_list *list)
{
	struct fault fault;
	char path[PATH_MAX];

	if (!absolute(o, "path", o->source->path, path))
		return false;
	if (!shard_list_read(list, path, &fault))
		return opening_refuse(o, "path", "%s%s", fault.text,
			fault.error ? "; must be a readable file, a directory or a pattern" : "");
	return list->count > 0 ||
	       opening_refuse(o, "path", "%s: no shards found; must have at least one", path);
}

/* Shared by all threads. */
struct describing {
	const struct opening *opening;
	const struct shard_format *format; /* of the config; NULL: any */
	struct manifest *m;
	pthread_mutex_t lock; /* over *m, and *opening->dataset */
};

/* Describes file @s. @path is its path afterwards. NULL: @fault, without that. */
static const struct shard_format *look(const struct describing *all, uint64_t s,
	char path[PATH_MAX + 1], struct shard_facts *facts, struct stat *st, struct fault *fault)
{
	const struct shard_hint *hint = &all->opening->dataset->hint;
	const struct shard_format *format = NULL;
	int fd = -1;

	/* O_NONBLOCK: open() would wait for the writer of a FIFO. */
	errno = ENAMETOOLONG;
	if (shard_list_path(&all->m->list, s, path, PATH_MAX + 1))
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, st) != 0)
		fault_errno(fault, errno, "", "%s; must be readable", bytes_open_fault(errno));
	else
		format = shard_describe(all->format, path, fd, hint, facts, fault);
	if (fd >= 0)
		close(fd);
	return format;
}

/*
 * A file that is not a shard. Among shards it is most likely a README or the index of another
 * loader, which `format: flat` would serve as tokens, so the remedy is a pattern without it.
 */
static bool refuse_unknown(const struct describing *all, const struct opening *o, const char *path,
	const struct fault *cause)
{
	return opening_refuse(o, "path", "%s: %s%s", path, cause->text,
		all->m->list.count > 1
			? "; move it away, or set a pattern that matches only the shards"
		: shard_is_foreign(cause) ? ""
					  : "; " PHRASE_NOT_SHARD);
}

/*
 * A shard that manifest_keep() rejected. A file that no format recognises counts as flat. Among
 * shards of another format it is most likely one of them, with a lost index or a damaged header.
 */
static bool refuse_odd(const struct opening *o, const struct manifest *m,
	const struct shard_format *format, const char *path, const struct fault *cause)
{
	const char *first = shard_list_name(&m->list, 0);
	bool flat = format == &shard_flat;

	if (format == m->format || (!flat && m->format != &shard_flat))
		return opening_refuse_shard(o, path, cause);
	return opening_refuse(o, "path",
		"%s: " PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put it "
		"into a dataset of its own with format: flat",
		flat ? path : first, flat ? first : path, flat ? m->format->name : format->name);
}

/* Keeps the facts of a shard. With the lock. */
static bool keep(const struct describing *all, const struct opening *o, uint64_t s,
	const struct shard_format *format, const struct shard_facts *facts, const char *path)
{
	struct dataset *d = o->dataset;
	struct manifest *m = all->m;
	struct fault cause;
	bool first = !m->format, indexed = dataset_is_indexed(facts), has;

	if (!manifest_keep(m, s, format, facts, &cause))
		return refuse_odd(o, m, format, path, &cause);
	if (first) {
		snprintf(d->column, sizeof(d->column), "%s", facts->column);
		d->plain = true;
		d->masks = facts->mask;
		d->bounds = facts->bounds;
	}
	const char *odd = dataset_odd_side(d, facts, &has);

	if (odd)
		return opening_refuse(o, "path",
			"%s: has %s %s, but the first shard, %s, has %s; " PHRASE_ALL_OR_NONE, path,
			has ? "a" : "no", odd, shard_list_name(&m->list, 0), has ? "none" : "one");
	m->entry[s].sides = dataset_sides(facts);
	d->marked |= (d->hint.documents && indexed) ||
		     (d->hint.loss_mask && (facts->mask || facts->bounds));
	if (!indexed && s < d->unindexed)
		d->unindexed = s;
	d->plain &= m->entry[s].plain_at > 0;
	d->padding += facts->padding;
	if (facts->note[0] && (!d->note[0] || s < d->note_shard)) {
		memcpy(d->note, facts->note, sizeof(d->note));
		d->note_shard = s;
	}
	return true;
}

static bool describe(struct describing *all, const struct opening *o, uint64_t s)
{
	char path[PATH_MAX + 1];
	struct shard_facts facts;
	struct fault cause;
	struct stat st;
	const struct shard_format *format = look(all, s, path, &facts, &st, &cause);

	if (!format)
		return shard_is_unknown(&cause) ? refuse_unknown(all, o, path, &cause)
						: opening_refuse_shard(o, path, &cause);
	pthread_mutex_lock(&all->lock);
	bool fine = keep(all, o, s, format, &facts, path);

	if (fine)
		all->m->entry[s].file = dataset_identify(&st);
	pthread_mutex_unlock(&all->lock);
	return fine;
}

static bool describe_each(const struct parallel *p, struct fault *fault)
{
	struct describing *all = p->context;
	struct opening o = *all->opening;

	o.fault = fault;
	return describe(all, &o, p->i + 1);
}

static bool describe_files(const struct opening *o, struct manifest *m)
{
	struct describing all = {.opening = o, .m = m, .lock = PTHREAD_MUTEX_INITIALIZER};
	uint64_t n = m->list.count - 1;
	struct fault fault;

	if (!manifest_resize(m, m->list.count, &fault))
		return opening_refuse_memory(o);
	/* The first shard sets the format and width that all must have. */
	return find_format(o, &all.format) && describe(&all, o, 0) &&
	       parallel_for(n, parallel_reads(n), describe_each, &all, o->fault) == n;
}

/* ---- annotations of shards that a manifest lists ---- */

/*
 * Whether shards have masks and lists of bounds is taken from the first one. In a store, shards
 * have annotations only if the manifest lists side files, or if they have an index themselves; of
 * files, that is found when a shard is opened.
 */
static bool presume_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct fault fault;
	struct stat st;
	uint32_t id = 0;
	char path[PATH_MAX + 1];

	d->marked = (d->hint.documents || d->hint.loss_mask) &&
		    (!d->objects || d->sides.count > 0 || d->format->indexed);
	d->unindexed = 0;
	if (!d->hint.loss_mask)
		return true;
	dataset_shard_path(d, 0, path, sizeof(path));
	if (!d->objects && stat(path, &st) != 0)
		return opening_refuse(o, "path", "%s: %s; must be readable", path, strerror(errno));
	d->masks = mask_side_id(d->format, &d->hint, path) != 0;
	d->bounds = !d->format->indexed && bounds_side_id(d->hint.objects, path, &id, &fault) &&
		    id != 0;
	return d->masks || !d->hint.label_mask ||
	       opening_refuse(o, "label_mask", "shard %s has no loss mask in it%s",
		       dataset_shard_name(d, 0),
		       d->objects ? " by the manifest; write that again with `tokctl manifest`"
				  : "; must have one for each shard");
}

/* ---- all of it ---- */

/* A mask among the shards would be served as tokens. */
static bool check_label_mask(const struct opening *o, const struct shard_list *list)
{
	const char *mask = o->dataset->label_mask;
	char path[PATH_MAX + 1];
	size_t n = strlen(mask);

	for (uint64_t s = 0; s < list->count; s++)
		if (shard_list_path(list, s, path, sizeof(path)) && strncmp(path, mask, n) == 0 &&
			path[n] == '/')
			return opening_refuse(o, "label_mask",
				"%s is in it and also in path; must be a directory outside path",
				path);
	return true;
}

/* Prepares the hint, also for the annotations that the stream requests. */
static bool prepare(const struct opening *o, const struct shard_list *list)
{
	struct dataset *d = o->dataset;
	const char *mask = o->source->label_mask;
	size_t root = strlen(list->root);
	char path[PATH_MAX];

	d->hint = opening_hint(o);
	d->hint.documents = o->stream->documents;
	d->hint.loss_mask = o->stream->loss_mask;
	d->hint.indexes = mds_indexes_new(list->root);
	d->has_eos = o->stream->has_eos;
	d->has_vocab = o->stream->has_vocab;
	d->eos = (uint32_t)o->stream->eos;
	d->unindexed = list->count;
	if (!d->hint.indexes)
		return opening_refuse_memory(o);
	if (!mask)
		return true;
	if (!absolute(o, "label_mask", mask, path))
		return false;
	d->label_mask = strdup(path);
	if (!d->label_mask)
		return opening_refuse_memory(o);
	for (size_t n = strlen(d->label_mask); n > 1 && d->label_mask[n - 1] == '/'; n--)
		d->label_mask[n - 1] = 0;
	d->hint.label_mask = d->label_mask;
	d->hint.root_bytes = root + (root > 0 && list->root[root - 1] != '/');
	return check_label_mask(o, list);
}

/* A number that is equal for equal shards: the digest, or without one the ETag. */
static uint64_t contents_of(const struct dataset *d, uint64_t s)
{
	struct object object;

	if (d->entry[s].digest || !d->objects)
		return d->entry[s].digest;
	dataset_object(d, s, &object);
	return order_name_hash(object.etag, strlen(object.etag));
}

/* Moves the shards to the dataset. */
static bool take(const struct opening *o, struct manifest *m)
{
	struct dataset *d = o->dataset;
	uint64_t shards = m->list.count;

	d->format = m->format;
	d->token_bytes = m->token_bytes;
	d->sample_tokens = m->sample_tokens;
	d->frame_bytes = m->frame_bytes;
	d->is_signed = m->is_signed;
	d->list = m->list;
	d->entry = m->entry;
	d->sides = m->sides;
	d->bucket = m->bucket;
	d->key_bytes = m->key_bytes;
	d->table = (struct table){
		.shards = shards,
		.tokens = m->tokens,
		.first_window = calloc(shards + 1, sizeof(*d->table.first_window)),
		.window_tokens = d->hint.window_tokens,
		.stride = o->stream->stride,
	};
	*m = (struct manifest){0};
	if (d->bucket) {
		d->finder = (struct objects){.stores = o->stores,
			.find = dataset_find_object,
			.context = d,
			.inspected = true};
		d->objects = d->hint.objects = &d->finder;
	}
	/* If the format mixes rows and one shard has others than windows, those of all are joined.
	 */
	d->hint.joined = d->format->mixes_rows && d->sample_tokens == 0;
	if (d->listed && !o->source->has_dtype)
		d->hint.type = (enum shard_type)d->entry[0].type;
	for (uint64_t s = 0; d->listed && s < shards; s++)
		d->contents = order_derive(d->contents, contents_of(d, s));
	return d->table.first_window || opening_refuse_memory(o);
}

bool opening_shards(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct manifest m = {0};

	d->listed = o->source->manifest;
	bool fine = (d->listed ? opening_manifest(o, &m) : list_files(o, &m.list)) &&
		    prepare(o, &m.list) && (d->listed || describe_files(o, &m)) && take(o, &m);

	manifest_free(&m);
	return fine && (!d->listed || presume_annotations(o));
}
