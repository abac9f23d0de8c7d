#include "daemon/catalog/opening.h"

#include "daemon/store/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the side files that a manifest lists ---- */

enum { RECENT = 2 }; /* lines of a directory repeat its index, and that of the parent */

/* Before the ETag, the first two members follow a name. */
enum { HEAD_BYTES = offsetof(struct side, name) };

static bool same(const struct side *a, const struct side *b)
{
	return strcmp(a->name, b->name) == 0 && a->size == b->size && strcmp(a->etag, b->etag) == 0;
}

struct side side_list_at(const struct shard_list *list, uint64_t i)
{
	const char *name = shard_list_name(list, i), *after = name + strlen(name) + 1;
	struct side side = {.name = name, .etag = after + HEAD_BYTES};

	memcpy(&side, after, HEAD_BYTES);
	return side;
}

bool side_list_add(
	struct shard_list *list, const char *key, const struct side *side, struct fault *fault)
{
	char after[HEAD_BYTES + STORE_ETAG_BYTES];
	size_t n = strlen(side->etag) + 1;

	for (uint64_t i = 1; i <= RECENT && i <= list->count; i++) {
		struct side recent = side_list_at(list, list->count - i);

		if (same(&recent, side))
			return true;
	}
	memcpy(after, side, HEAD_BYTES);
	memcpy(after + HEAD_BYTES, side->etag, n);
	return shard_list_add_between(list, store_is_url(side->name) ? "" : key, side->name, after,
		HEAD_BYTES + n, fault);
}

bool side_list_end(struct shard_list *list, struct side *one, struct side *other)
{
	uint64_t kept = 0;

	if (list->count == 0)
		return true;
	shard_list_sort(list);
	for (uint64_t i = 1; i < list->count; i++) {
		*one = side_list_at(list, kept);
		*other = side_list_at(list, i);
		if (same(one, other))
			continue;
		if (strcmp(one->name, other->name) == 0)
			return false;
		list->at[++kept] = list->at[i];
	}
	list->count = kept + 1;
	shard_list_trim(list);
	return true;
}

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
