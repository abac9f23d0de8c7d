#include "daemon/shard/cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
	struct item *next;
	void *(*make)(const void *context, const char *path,
		struct fault *fault); /* part of the key: formats may share a file */
	void (*drop)(void *made);
	void *made;
	char *path;
};

struct cache {
	pthread_mutex_t lock;
	struct item
		*items; /* most recently used first: shards of one directory follow one another */
	char root[];
};

struct cache *cache_new(const char *root)
{
	size_t n = strlen(root) + 1;
	struct cache *cache = malloc(sizeof(*cache) + n);

	if (!cache)
		return NULL;
	pthread_mutex_init(&cache->lock, NULL);
	cache->items = NULL;
	memcpy(cache->root, root, n);
	return cache;
}

void cache_free(struct cache *cache)
{
	while (cache && cache->items) {
		struct item *item = cache->items;

		cache->items = item->next;
		item->drop(item->made);
		free(item->path);
		free(item);
	}
	if (cache)
		pthread_mutex_destroy(&cache->lock);
	free(cache);
}

const char *cache_root(const struct cache *cache)
{
	return cache->root;
}

static struct item *item_new(const char *path,
	void *(*make)(const void *context, const char *path, struct fault *fault),
	const void *context, void (*drop)(void *made), struct fault *fault)
{
	struct item *item = calloc(1, sizeof(*item));
	char *copy = strdup(path);

	if (item && copy)
		*item = (struct item){.make = make,
			.drop = drop,
			.made = make(context, path, fault),
			.path = copy};
	else
		fault_memory(fault);
	if (item && item->made)
		return item;
	free(copy);
	free(item);
	return NULL;
}

const void *cache_get(struct cache *cache, const char *path,
	void *(*make)(const void *context, const char *path, struct fault *fault),
	const void *context, void (*drop)(void *made), struct fault *fault)
{
	pthread_mutex_lock(&cache->lock);
	struct item **at = &cache->items, *item;

	while (*at && ((*at)->make != make || strcmp((*at)->path, path) != 0))
		at = &(*at)->next;
	item = *at;
	if (item)
		*at = item->next;
	else
		item = item_new(path, make, context, drop, fault);
	if (item) {
		item->next = cache->items;
		cache->items = item;
	}
	pthread_mutex_unlock(&cache->lock);
	return item ? item->made : NULL;
}
