#include "daemon/catalog/dataset_objects.h"

#include "daemon/catalog/side_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void dataset_object(const struct dataset *dataset, uint64_t shard, struct object *object)
{
	const struct dataset_objects *o = dataset->objects;
	const char *name = dataset_shard_name(dataset, shard);

	assert(o);
	*object = (struct object){
		.bucket = o->bucket,
		.key = name - o->key_bytes,
		.etag = name + strlen(name) + 1,
		.size = dataset->entry[shard].file.bytes,
		.piece = dataset->piece,
	};
}

static bool find_side(const struct dataset *d, const char *name, struct object *object)
{
	const struct dataset_objects *o = d->objects;
	int64_t i = shard_list_find(&o->sides, name);
	struct fault fault;

	if (i < 0)
		return false;
	struct side side = side_list_at(&o->sides, (uint64_t)i);

	*object = (struct object){.bucket = o->bucket,
		.key = side.name - o->key_bytes,
		.etag = side.etag,
		.size = side.size,
		.piece = d->piece};
	if (store_is_url(side.name))
		object->bucket = store_bucket(o->objects.stores, side.name, &object->key, &fault);
	return object->bucket;
}

/* @context: the dataset. */
static bool find(const void *context, const char *url, struct object *object)
{
	const struct dataset *d = context;
	size_t n = strlen(d->root);

	if (strncmp(url, d->root, n) != 0 || url[n] != '/')
		return find_side(d, url, object);
	int64_t shard = dataset_find_shard(d, url + n + 1);

	if (shard < 0)
		return find_side(d, url + n + 1, object);
	dataset_object(d, (uint64_t)shard, object);
	return true;
}

bool dataset_objects_take(struct dataset *dataset, struct manifest *manifest, struct stores *stores)
{
	struct dataset_objects *o = calloc(1, sizeof(*o));

	if (!o)
		return false;
	*o = (struct dataset_objects){
		.objects = {.stores = stores, .find = find, .context = dataset, .inspected = true},
		.bucket = manifest->bucket,
		.key_bytes = manifest->key_bytes,
		.sides = manifest->sides,
	};
	manifest->sides = (struct shard_list){0};
	dataset->objects = o;
	return true;
}
