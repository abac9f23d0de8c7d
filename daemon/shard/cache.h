/*
 * A cache of what formats read from files that many shards share, like an index in their directory.
 * Such a file is read once for a dataset, and is the same for all its shards.
 */
#ifndef TOKEND_SHARD_CACHE_H
#define TOKEND_SHARD_CACHE_H

#include "proto/fault.h"

struct cache;

/* @root: the directory that holds all shards, directly or in subdirectories. NULL: out of memory.
 */
struct cache *cache_new(const char *root);
void cache_free(struct cache *cache); /* NULL: nothing */
const char *cache_root(const struct cache *cache);
/*
 * Returns what @make made of @path, now or for an earlier shard. The cache owns it and frees it
 * with
 * @drop. Any thread; one makes it while the others wait. NULL: @make's @fault; it is not cached, so
 * the next call tries again.
 */
const void *cache_get(struct cache *cache, const char *path,
	void *(*make)(const char *path, struct fault *fault), void (*drop)(void *made),
	struct fault *fault);

#endif
