#include "daemon/catalog/dataset_sums.h"

#include "daemon/catalog/dataset_objects.h"
#include "daemon/catalog/manifest_text.h"
#include "daemon/catalog/opening.h"
#include "daemon/store/sums.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The path or URL of the sums; "": there are none. */
static bool find_sums(const struct opening *o, char path[PATH_MAX])
{
	const struct config_dataset *source = o->source;
	char manifest[PATH_MAX];

	path[0] = 0;
	if (source->sums)
		return config_path(o->config, source->sums, path, PATH_MAX) ||
		       opening_refuse(o, source->sums_line, "sums", "%s", strerror(ENAMETOOLONG));
	if (store_is_url(source->manifest))
		return true; /* a GET of what may be missing says nothing: S3 may answer 403 */
	if (!config_path(o->config, source->manifest, manifest, sizeof(manifest)) ||
		!sums_path(manifest, path, PATH_MAX) || access(path, F_OK) != 0)
		path[0] = 0;
	return true;
}

/* Describes the manifest, and sets the number of the first piece of each shard. */
static struct sums_head describe(const struct dataset *d, uint64_t *sums_at)
{
	struct sums_head head = {.piece = d->piece, .shards = d->table.shards};
	struct object object;

	for (uint64_t s = 0; s < d->table.shards; s++) {
		dataset_object(d, s, &object);
		head.manifest = sums_manifest(head.manifest, object.size, object.etag);
		sums_at[s] = head.pieces;
		head.pieces += sums_pieces(object.size, d->piece);
	}
	return head;
}

static bool read_sums(const struct opening *o)
{
	struct dataset_objects *objects = o->dataset->objects;
	struct sums_head head;
	char path[PATH_MAX], *text = NULL;
	struct fault fault;
	FILE *file;

	if (!find_sums(o, path))
		return false;
	if (!*path)
		return true;
	objects->sums_at = calloc(o->dataset->table.shards, sizeof(*objects->sums_at));
	if (!objects->sums_at)
		return opening_refuse_memory(o);
	head = describe(o->dataset, objects->sums_at);
	file = manifest_text_open(path, o->stores, &text, &fault);
	objects->sums = file ? sums_read(file, &head, &fault) : NULL;
	if (file)
		fclose(file);
	free(text);
	return objects->sums ||
	       opening_refuse(o,
		       o->source->sums_line ? o->source->sums_line : o->source->manifest_line,
		       "sums", "%s: %s", path, fault.text);
}

bool dataset_sums_read(struct catalog *catalog, struct stores *stores, struct fault *fault)
{
	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		struct stream *stream = &catalog->stream[s];

		for (uint32_t i = 0; stream->config && i < stream->config->datasets; i++) {
			const struct opening o = {.config = catalog->config,
				.stream = stream->config,
				.source = &stream->config->dataset[i],
				.stores = stores,
				.dataset = &stream->dataset[i],
				.fault = fault};

			if (o.dataset->objects && o.dataset->piece && !read_sums(&o))
				return false;
		}
	}
	return true;
}
