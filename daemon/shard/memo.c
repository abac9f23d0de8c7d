#include "memo.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
	struct item *next;
	void *(*make)(const char *path, char *why, size_t why_bytes); /* tells formats apart */
	void (*drop)(void *made);
	void *made; /* NULL: why */
	char *path;
	char why[256];
};

struct memo {
	pthread_mutex_t lock;
	struct item *items; /* the one asked for last comes first: shards of a directory stand together */
	char root[];
};

struct memo *memo_new(const char *root)
{
	size_t n = strlen(root) + 1;
	struct memo *memo = malloc(sizeof(*memo) + n);

	if (!memo)
		return NULL;
	pthread_mutex_init(&memo->lock, NULL);
	memo->items = NULL;
	memcpy(memo->root, root, n);
	return memo;
}

void memo_free(struct memo *memo)
{
	while (memo && memo->items) {
		struct item *item = memo->items;

		memo->items = item->next;
		if (item->made)
			item->drop(item->made);
		free(item->path);
		free(item);
	}
	if (memo)
		pthread_mutex_destroy(&memo->lock);
	free(memo);
}

const char *memo_root(const struct memo *memo)
{
	return memo->root;
}

/* With the lock: the item, now the first; NULL: out of memory. */
static struct item *item_of(struct memo *memo, const char *path,
	void *(*make)(const char *path, char *why, size_t why_bytes), void (*drop)(void *made))
{
	struct item **at = &memo->items, *item;

	while (*at && ((*at)->make != make || strcmp((*at)->path, path) != 0))
		at = &(*at)->next;
	item = *at;
	if (item) {
		*at = item->next;
	} else {
		item = calloc(1, sizeof(*item));
		if (!item)
			return NULL;
		item->path = strdup(path);
		if (!item->path) {
			free(item);
			return NULL;
		}
		item->make = make;
		item->drop = drop;
		item->made = make(path, item->why, sizeof(item->why));
	}
	item->next = memo->items;
	memo->items = item;
	return item;
}

const void *memo_of(struct memo *memo, const char *path,
	void *(*make)(const char *path, char *why, size_t why_bytes), void (*drop)(void *made), char *why,
	size_t why_bytes)
{
	pthread_mutex_lock(&memo->lock);
	struct item *item = item_of(memo, path, make, drop);

	pthread_mutex_unlock(&memo->lock);
	if (!item) {
		snprintf(why, why_bytes, "%s", strerror(ENOMEM));
		return NULL;
	}
	if (!item->made)
		snprintf(why, why_bytes, "%s", item->why);
	return item->made;
}
