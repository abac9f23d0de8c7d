/*
 * What formats learn from files that many shards share, like an index in their directory: it is
 * read once for a dataset, not once a shard, and is the same for all of them.
 */
#ifndef TOKEND_SHARD_CACHE_H
#define TOKEND_SHARD_CACHE_H

#include "proto/fault.h"

struct cache;

/* @root: the directory that all shards lie in or below. NULL: out of memory. */
struct cache *cache_new(const char *root);
void cache_free(struct cache *cache); /* NULL: nothing */
const char *cache_root(const struct cache *cache);
/*
 * What @make made of @path, now or for an earlier shard; @cache owns it and frees it with @drop.
 * NULL: what it says in @fault; it is asked again the next time. Any thread; one makes, the others
 * wait.
 */
const void *cache_get(struct cache *cache, const char *path,
	void *(*make)(const char *path, struct fault *fault), void (*drop)(void *made),
	struct fault *fault);

#endif
