#include "daemon/shard/bytes_object.h"

#include <stdlib.h>

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

struct object_source {
	struct bytes bytes;
	struct object object;
};

static bool object_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	const struct object_source *s = (const struct object_source *)b;

	return ahead_read(b->ahead, b->objects->stores, &s->object, at, to, n, fault);
}

static void object_close(struct bytes *b)
{
	ahead_free(b->ahead);
	free(b);
}

static const struct bytes_ops object_ops = {.read = object_read, .close = object_close};

static uint64_t hash_of(const struct object *object)
{
	uint64_t hash = object->etag ? XXH64(object->etag, strlen(object->etag), 0) : 0;

	return XXH64(&object->size, sizeof(object->size), hash);
}

uint32_t bytes_object_id(const struct object *object)
{
	uint32_t id = (uint32_t)hash_of(object);

	return id ? id : 1;
}

/* Differs for objects of one size and ETag. */
static uint64_t version_of(const struct object *object)
{
	uint64_t where = (uintptr_t)object->bucket ^ hash_of(object);

	return XXH64(object->key, strlen(object->key), where);
}

bool bytes_object_open(const struct objects *objects, const char *path, struct ahead *ahead,
	struct bytes **b, struct fault *fault)
{
	struct object object;
	struct object_source *s;

	*b = NULL;
	if (!objects->find(objects->context, path, &object))
		return true;
	s = calloc(1, sizeof(*s));
	if (!s)
		return fault_memory(fault);
	s->object = object;
	s->bytes = (struct bytes){.ops = &object_ops,
		.path = path,
		.size = object.size,
		.plain = true,
		.fd = -1,
		.id = bytes_object_id(&object),
		.version = version_of(&object),
		.objects = objects,
		.ahead = ahead_share(ahead)};
	*b = &s->bytes;
	return true;
}
