/* The side files that a manifest lists: their names, sizes and ETags. */
#ifndef TOKEND_SIDE_LIST_H
#define TOKEND_SIDE_LIST_H

#include "daemon/shard/list.h"

/*
 * Lists of this kind have the size, the line and the ETag after each name in memory. A name that is
 * relative to the dataset has the dataset's key before it; other names are URLs.
 */
struct side {
	const char *name, *etag;
	uint64_t size, line; /* line: of the manifest */
};

/* Appends a side file. A name that was just added with the same size and ETag is ignored. */
bool side_list_add(
	struct shard_list *list, const char *key, const struct side *side, struct fault *fault);
struct side side_list_at(const struct shard_list *list, uint64_t i);
/*
 * Sorts the list and drops repeated entries. False: *@one and *@other have one name, and another
 * size or ETag.
 */
bool side_list_end(struct shard_list *list, struct side *one, struct side *other);

#endif
