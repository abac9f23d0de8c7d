/*
 * From a path in the config to a sorted list of files. The path is a file, a directory (read
 * recursively) or a pattern. Nothing is skipped but names that begin with a dot, and companions of
 * shards that are in the list (an index, a mask, …): whatever cannot be read is an error that names
 * it, and so is a companion whose shard is not there.
 */
#ifndef TOKEND_SHARD_LIST_H
#define TOKEND_SHARD_LIST_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Four bytes a file besides the text of the names: a dataset may have millions. */
struct shard_list {
	char *root;   /* absolute; the directory, a file's parent, or what stands before a pattern's
			 first   wildcard */
	char *paths;  /* relative to root, each with its 0 */
	uint32_t *at; /* [count] offsets into paths, so that the names ascend byte by byte */
	uint64_t count;
	size_t bytes; /* of paths */
	size_t paths_room, at_room;
};

/*
 * @path is absolute. A path that exists is taken as it stands, whatever characters it has;
 * otherwise `*`, `?` and `[…]` make it a pattern, whose matches may be files and directories. Links
 * are followed. An empty list is no fault here. On false one line is in @fault and @list is empty.
 */
bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault);
/* Appends a name. False: out of memory, or the names are over 4 GiB in all. */
bool shard_list_add(struct shard_list *list, const char *name, struct fault *fault);
/* Puts what was added in its order. */
void shard_list_sort(struct shard_list *list);
/* Is @name, which may be in the list or not, a companion of a shard that is? */
bool shard_list_accompanies(const struct shard_list *list, const char *name);
/* Gives back what adding left over. */
void shard_list_trim(struct shard_list *list);
void shard_list_free(struct shard_list *list);
const char *shard_list_name(const struct shard_list *list, uint64_t file);
/* Index of the file called @name, or -1. */
int64_t shard_list_find(const struct shard_list *list, const char *name);
/* root and name as one path. False if it does not fit. */
bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes);

#endif
