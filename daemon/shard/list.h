/*
 * A sorted list of the shards at a path of the config: a file, a directory (read recursively) or a
 * pattern. Names that begin with a dot are skipped, and so are side files (an index, a mask, …) of
 * shards in the list. A directory that cannot be read is an error, and so is a side file without
 * its shard.
 */
#ifndef TOKEND_SHARD_LIST_H
#define TOKEND_SHARD_LIST_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes four bytes per file and the text of its name: a dataset may have millions. */
struct shard_list {
	char *root; /* absolute, or a URL; the directory, a file's parent, or the directory before a
		       pattern's first wildcard */
	char *paths;  /* relative to root, each ends with a NUL */
	uint32_t *at; /* [count] offsets into paths, sorted by name as strcmp() does */
	uint64_t count;
	size_t bytes; /* used in paths */
	size_t paths_room, at_room;
};

/*
 * Lists the shards at @path, which is absolute. If it does not exist, `*`, `?` and `[…]` make it a
 * pattern that may match files and directories. Links are followed. An empty list is not a fault.
 * On failure returns false with an empty @list; @fault gives the path.
 */
bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault);
/* Appends a name. False: out of memory, or the names exceed 4 GiB in total. */
bool shard_list_add(struct shard_list *list, const char *name, struct fault *fault);
/* The same with @before right before the name, and @n bytes @after right after its zero. */
bool shard_list_add_between(struct shard_list *list, const char *before, const char *name,
	const void *after, size_t n, struct fault *fault);
/* Sorts the list after additions. */
void shard_list_sort(struct shard_list *list);
/*
 * Sorts the names that were added to a list with a root, and moves side files to the names [count,
 * count + *@sides). False: @fault, as shard_list_read().
 */
bool shard_list_split(struct shard_list *list, uint64_t *sides, struct fault *fault);
/* What each file of a sorted list is, by its name. NULL: out of memory. Free it with free(). */
enum { LIST_SHARD, LIST_ORPHAN /* a side file without its shard */, LIST_SIDE };
uint8_t *shard_list_mark(const struct shard_list *list);
void shard_list_free(struct shard_list *list);
const char *shard_list_name(const struct shard_list *list, uint64_t file);
/* Index of the file called @name, or -1. */
int64_t shard_list_find(const struct shard_list *list, const char *name);
/* Writes the file's absolute path to @path. False: it does not fit. */
bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes);

#endif
