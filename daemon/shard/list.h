/*
 * A sorted list of the files that a path in the config names. The path is a file, a directory (read
 * recursively) or a pattern. Names that begin with a dot are skipped, and so are side files (an
 * index, a mask, …) of shards in the list. A file that cannot be read is an error; so is a side
 * file without its shard.
 */
#ifndef TOKEND_SHARD_LIST_H
#define TOKEND_SHARD_LIST_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes four bytes a file besides the text of its name: a dataset may have millions. */
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
 * @path is absolute. If it does not exist, `*`, `?` and `[…]` make it a pattern that may match
 * files and directories. Links are followed. An empty list is not a fault. False: @fault gives the
 * path;
 * @list is empty.
 */
bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault);
/* Appends a name. False: out of memory, or the names are over 4 GiB in all. */
bool shard_list_add(struct shard_list *list, const char *name, struct fault *fault);
/* Sorts the list after additions. */
void shard_list_sort(struct shard_list *list);
/* Is @name a side file of a shard in the list? It need not be in the list itself. */
bool shard_list_accompanies(const struct shard_list *list, const char *name);
/* Frees spare memory. */
void shard_list_trim(struct shard_list *list);
void shard_list_free(struct shard_list *list);
const char *shard_list_name(const struct shard_list *list, uint64_t file);
/* Index of the file called @name, or -1. */
int64_t shard_list_find(const struct shard_list *list, const char *name);
/* Joins root and name. False: it does not fit. */
bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes);

#endif
