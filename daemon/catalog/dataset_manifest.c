#include "daemon/catalog/opening.h"

#include "daemon/shard/bounds.h"
#include "daemon/shard/format.h"
#include "daemon/shard/list.h"
#include "daemon/shard/mds_index.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/*
 * The directory need not exist until shards are read. A path with wildcards is a pattern only if
 * there is no such file.
 */
static bool check_directory(const struct opening *o, const char *root, const char *manifest)
{
	struct stat st;

	if (stat(root, &st) == 0 ? S_ISDIR(st.st_mode) : !strpbrk(o->source->path, "*?["))
		return true;
	return opening_refuse(o, o->source->path_line, "path",
		"%.80s: is not a directory; with a manifest, must be the directory that the paths "
		"in %s are relative to",
		o->source->path, manifest);
}

static bool check_url(const struct opening *o, const char *root)
{
	struct fault fault;
	const char *key;

	if (!o->stores)
		return opening_refuse(o, o->source->path_line, "path",
			"%.80s: is in a store, and no stores are open", root);
	if (!store_bucket(o->stores, root, &key, &fault))
		return opening_refuse(o, o->source->path_line, "path", "%s", fault.text);
	return *key == 0 || key[strlen(key) - 1] == '/' ||
	       opening_refuse(o, o->source->path_line, "path",
		       "%.80s: must end in /, the prefix of all its shards", root);
}

static bool read_manifest(const struct opening *o, struct manifest *m)
{
	struct stat st;
	char path[PATH_MAX], root[PATH_MAX];
	const struct shard_format *format;
	struct shard_hint hint = opening_hint(o);
	struct fault fault;

	if (!opening_format(o, &format))
		return false;
	if (!config_path(o->config, o->source->manifest, path, sizeof(path)))
		return opening_refuse(
			o, o->source->manifest_line, "manifest", "%s", strerror(ENAMETOOLONG));
	if (!config_path(o->config, o->source->path, root, sizeof(root)))
		return opening_refuse(
			o, o->source->path_line, "path", "%s", strerror(ENAMETOOLONG));
	if (!(store_is_url(root) ? check_url(o, root) : check_directory(o, root, path)))
		return false;
	if (o->dataset && stat(path, &st) == 0)
		o->dataset->manifest = dataset_identify(&st);
	if (manifest_read(m, path, root, o->stores, format, &hint, NULL, NULL, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return opening_refuse(o, o->source->manifest_line, "manifest",
			"%s; must be a file written by `tokctl manifest`", fault.text);
	*o->fault = fault;
	return false;
}

/*
 * In a store, the manifest lists side files. If there are none, and shards themselves have no
 * documents, no shard has annotations in files.
 */
static bool list_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	bool asked = d->hint.documents || d->hint.loss_mask;
	struct fault fault;
	uint32_t id = 0;
	char path[PATH_MAX + 1];

	d->marked = asked && (d->objects->sides.count > 0 || d->format->indexed);
	d->unindexed = 0;
	if (!d->hint.loss_mask)
		return true;
	dataset_shard_path(d, 0, path, sizeof(path));
	d->masks = mask_side_id(d->format, &d->hint, path) != 0;
	d->bounds = !d->format->indexed && bounds_side_id(d->hint.objects, path, &id, &fault) &&
		    id != 0;
	return d->masks || !d->hint.label_mask ||
	       opening_refuse(o, o->source->label_mask_line, "label_mask",
		       "the manifest lists no loss mask in it for shard %s; write the manifest "
		       "again with `tokctl manifest`",
		       dataset_shard_name(d, 0));
}

/*
 * Otherwise a manifest does not list side files. Whether a shard has an index is found when it is
 * opened. Whether shards have masks and lists of bounds is taken from the first one.
 */
static bool presume_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct shard_facts facts;
	struct fault fault;
	char path[PATH_MAX + 1];

	d->marked = d->hint.documents || d->hint.loss_mask;
	d->unindexed = 0;
	if (!d->hint.loss_mask)
		return true;
	dataset_shard_path(d, 0, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool fine = fd >= 0 && shard_describe(d->format, path, fd, &d->hint, &facts, &fault);

	if (fd < 0)
		fault_errno(&fault, errno, "", "%s; must be readable", bytes_open_fault(errno));
	else
		close(fd);
	if (!fine)
		return opening_refuse_shard(o, path, &fault);
	d->masks = facts.mask;
	d->bounds = facts.bounds;
	return true;
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

bool dataset_from_manifest(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct manifest m = {0};

	if (!read_manifest(o, &m))
		return false;
	d->format = m.format;
	d->token_bytes = m.token_bytes;
	d->sample_tokens = m.sample_tokens;
	d->frame_bytes = m.frame_bytes;
	d->is_signed = m.is_signed;
	d->table.tokens = m.tokens;
	d->entry = m.entry;
	d->listed = true;
	m.tokens = NULL;
	m.entry = NULL;
	bool stored = m.bucket, fine = opening_allocate(o, &m.list);

	if (fine)
		dataset_settle_rows(d);
	d->hint.indexes = fine ? mds_indexes_new(d->root) : NULL;
	if (stored) {
		fine = fine && (dataset_objects_take(d, &m, o->stores) || opening_refuse_memory(o));
		d->hint.objects = fine ? &d->objects->objects : NULL;
	}
	fine = fine && (d->hint.indexes || opening_refuse_memory(o));
	if (!o->source->has_dtype)
		d->hint.type = (enum shard_type)d->entry[0].type;
	for (uint64_t s = 0; fine && s < d->table.shards; s++)
		d->contents = order_derive(d->contents, contents_of(d, s));
	manifest_free(&m);
	return fine && (stored ? list_annotations(o) : presume_annotations(o));
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

	return read_manifest(&o, manifest);
}
