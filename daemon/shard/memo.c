#include "daemon/shard/memo.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
	struct item *next;
	void *(*make)(const char *path, struct fault *fault); /* tells formats apart */
	void (*drop)(void *made);
	void *made;
	char *path;
};

struct memo {
	pthread_mutex_t lock;
	struct item *items; /* the one asked for last comes first: shards of a directory stand
			       together */
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

static struct item *item_new(const char *path, void *(*make)(const char *path, struct fault *fault),
	void (*drop)(void *made), struct fault *fault)
{
	struct item *item = calloc(1, sizeof(*item));
	char *copy = strdup(path);

	if (item && copy)
		*item = (struct item){
			.make = make, .drop = drop, .made = make(path, fault), .path = copy};
	else
		fault_memory(fault);
	if (item && item->made)
		return item;
	free(copy);
	free(item);
	return NULL;
}

const void *memo_of(struct memo *memo, const char *path,
	void *(*make)(const char *path, struct fault *fault), void (*drop)(void *made),
	struct fault *fault)
{
	pthread_mutex_lock(&memo->lock);
	struct item **at = &memo->items, *item;

	while (*at && ((*at)->make != make || strcmp((*at)->path, path) != 0))
		at = &(*at)->next;
	item = *at;
	if (item)
		*at = item->next;
	else
		item = item_new(path, make, drop, fault);
	if (item) {
		item->next = memo->items;
		memo->items = item;
	}
	pthread_mutex_unlock(&memo->lock);
	return item ? item->made : NULL;
}
