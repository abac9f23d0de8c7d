#include "daemon/catalog/dataset_manifest.h"

#include "daemon/shard/cache.h"
#include "daemon/shard/list.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_manifest(const struct opening *o, struct manifest *m)
{
	char path[PATH_MAX], root[PATH_MAX];
	const struct shard_format *format;
	struct shard_hint hint = opening_hint(o);
	struct fault fault;
	struct stat st;

	if (!opening_format(o, &format))
		return false;
	if (!config_path(o->config, o->source->manifest, path, sizeof(path)))
		return opening_refuse(
			o, o->source->manifest_line, "manifest", "%s", strerror(ENAMETOOLONG));
	/*
	 * The directory need not exist until shards are read. A path with wildcards is a pattern
	 * only if there is no such file.
	 */
	if (!config_path(o->config, o->source->path, root, sizeof(root)) ||
		(stat(root, &st) == 0 ? !S_ISDIR(st.st_mode)
				      : strpbrk(o->source->path, "*?[") != NULL))
		return opening_refuse(o, o->source->path_line, "path",
			"%.80s: is not a directory; with a manifest, must be the directory that "
			"the paths in %s are relative to",
			o->source->path, path);
	if (manifest_read(m, path, root, format, &hint, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return opening_refuse(o, o->source->manifest_line, "manifest",
			"%s; must be a file written by `tokctl inspect --manifest`", fault.text);
	*o->fault = fault;
	return false;
}

/*
 * A manifest does not list side files. Whether a shard has an index is found when it is opened.
 * Whether shards have masks and lists of bounds is taken from the first one.
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
	d->sizes = m.sizes;
	d->types = m.types;
	m.tokens = m.sizes = NULL;
	m.types = NULL;
	bool fine = opening_allocate(o, &m.list);

	d->hint.cache = fine ? cache_new(d->root) : NULL;
	d->plain_at = fine ? calloc(d->table.shards, sizeof(*d->plain_at)) : NULL;
	fine = fine && ((d->hint.cache && d->plain_at) || opening_refuse_memory(o));
	if (!o->source->has_dtype)
		d->hint.type = (enum shard_type)d->types[0];
	manifest_free(&m);
	return fine && presume_annotations(o);
}

bool dataset_manifest(const struct config *config, const struct config_stream *stream,
	const struct config_dataset *source, struct manifest *manifest, struct fault *fault)
{
	const struct opening o = {
		.config = config, .stream = stream, .source = source, .fault = fault};

	return read_manifest(&o, manifest);
}
