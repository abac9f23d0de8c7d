/*
 * What formats learn from files that many shards share, like an index in their directory: it is
 * read once for a dataset, not once a shard, and is the same for all of them.
 */
#ifndef TOKEND_SHARD_MEMO_H
#define TOKEND_SHARD_MEMO_H

#include "proto/fault.h"

struct memo;

/* @root: the directory that all shards lie in or below. NULL: out of memory. */
struct memo *memo_new(const char *root);
void memo_free(struct memo *memo); /* NULL: nothing */
const char *memo_root(const struct memo *memo);
/*
 * What @make made of @path, now or for an earlier shard; @memo owns it and frees it with @drop.
 * NULL: what it says in @fault; it is asked again the next time. Any thread; one makes, the others
 * wait.
 */
const void *memo_of(struct memo *memo, const char *path,
	void *(*make)(const char *path, struct fault *fault), void (*drop)(void *made),
	struct fault *fault);

#endif
