#include "daemon/catalog/side_list.h"

#include "daemon/store/store.h"

#include <string.h>

enum { RECENT = 2 }; /* lines of a directory repeat its index, and that of the parent */

/* What follows a name. */
struct after {
	uint64_t size, line;
	char etag[STORE_ETAG_BYTES];
};

static bool same(const struct side *a, const struct side *b)
{
	return strcmp(a->name, b->name) == 0 && a->size == b->size && strcmp(a->etag, b->etag) == 0;
}

struct side side_list_at(const struct shard_list *list, uint64_t i)
{
	const char *name = shard_list_name(list, i), *after = name + strlen(name) + 1;
	struct side side = {.name = name, .etag = after + offsetof(struct after, etag)};

	memcpy(&side.size, after + offsetof(struct after, size), sizeof(side.size));
	memcpy(&side.line, after + offsetof(struct after, line), sizeof(side.line));
	return side;
}

bool side_list_add(
	struct shard_list *list, const char *key, const struct side *side, struct fault *fault)
{
	struct after after = {.size = side->size, .line = side->line};
	size_t n = strlen(side->etag) + 1;

	for (uint64_t i = 1; i <= RECENT && i <= list->count; i++) {
		struct side recent = side_list_at(list, list->count - i);

		if (same(&recent, side))
			return true;
	}
	memcpy(after.etag, side->etag, n);
	return shard_list_add_between(list, store_is_url(side->name) ? "" : key, side->name, &after,
		offsetof(struct after, etag) + n, fault);
}

bool side_list_end(struct shard_list *list, struct side *one, struct side *other)
{
	uint64_t kept = 0;

	if (list->count == 0)
		return true;
	shard_list_sort(list);
	for (uint64_t i = 1; i < list->count; i++) {
		*one = side_list_at(list, kept);
		*other = side_list_at(list, i);
		if (same(one, other))
			continue;
		if (strcmp(one->name, other->name) == 0)
			return false;
		list->at[++kept] = list->at[i];
	}
	list->count = kept + 1;
	shard_list_trim(list);
	return true;
}
