/*
 * A dataset's cache of parsed files that many shards share, like the index of a directory. Such a
 * file is read once, so that all shards see the same contents.
 */
#ifndef TOKEND_SHARD_CACHE_H
#define TOKEND_SHARD_CACHE_H

#include "proto/fault.h"

struct cache;

/*
 * @root: the directory that contains all shards, directly or in subdirectories. NULL: out of
 * memory.
 */
struct cache *cache_new(const char *root);
void cache_free(struct cache *cache); /* NULL: does nothing */
const char *cache_root(const struct cache *cache);
/*
 * Returns what @make(@context, @path) made, now or for an earlier shard. The cache owns it and
 * frees it with @drop. Any thread; one thread calls @make while the others wait. On failure returns
 * NULL and
 * @make's @fault. The failure is not cached, so the next call retries.
 */
const void *cache_get(struct cache *cache, const char *path,
	void *(*make)(const void *context, const char *path, struct fault *fault),
	const void *context, void (*drop)(void *made), struct fault *fault);

#endif
