#include "daemon/store/cache_state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int64_t cache_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Removed while it was opened, and perhaps made again: it must not be used. */
static bool unlinked(int fd)
{
	struct stat st;

	return fstat(fd, &st) != 0 || st.st_nlink == 0;
}

void cache_failed(struct store_cache *cache, int error, const char *what)
{
	char line[LIMIT_TEXT_BYTES];
	int64_t now = cache_now_ms();
	bool first, removed = error == ENOENT && unlinked(cache->dir);

	pthread_mutex_lock(&cache->lock);
	first = now >= cache->failing_until_ms;
	cache->failed_ms = now;
	cache->failing_until_ms = now + CACHE_RETRY_S * 1000;
	if (removed)
		snprintf(cache->last, sizeof(cache->last), "the directory was removed");
	else
		snprintf(cache->last, sizeof(cache->last), "%s: %s", what, strerror(error));
	pthread_mutex_unlock(&cache->lock);
	if (removed)
		snprintf(line, sizeof(line),
			"cache %s: the directory was removed; windows are fetched singly until the "
			"daemon is started again",
			cache->path);
	else
		snprintf(line, sizeof(line),
			"cache %s: %s: %s; windows are fetched singly, and it is tried again every "
			"minute",
			cache->path, what, strerror(error));
	if (first && cache->log)
		cache->log(cache->log_context, line);
}

/* ---- open files ---- */

static unsigned chain_of(const struct cache_hash *hash)
{
	return (hash->byte[1] | (unsigned)hash->byte[2] << 8) % CACHE_CHAINS;
}

struct cache_opened *cache_opened_find(struct store_cache *cache, const struct cache_hash *hash)
{
	struct cache_opened *o;

	LIST_FOREACH(o, &cache->chain[chain_of(hash)], chain)
	if (memcmp(o->hash.byte, hash->byte, CACHE_HASH_BYTES) == 0)
		return o;
	return NULL;
}

static struct cache_opened **quick_of(
	struct store_cache *cache, const struct url_place *place, const struct object *object)
{
	return &cache->quick[(XXH64(object->key, strlen(object->key), (uintptr_t)place) ^
				     object->size) %
			     CACHE_QUICK];
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

struct cache_opened *cache_opened_quick(
	struct store_cache *cache, const struct url_place *place, const struct object *object)
{
	struct cache_opened *o = *quick_of(cache, place, object);

	return o && o->place == place && o->size == object->size && o->piece == object->piece &&
			       same_text(o->key, object->key) && same_text(o->etag, object->etag)
		       ? o
		       : NULL;
}

static void forget_name(struct store_cache *cache, struct cache_opened *o)
{
	if (o->key) {
		struct object was = {.key = o->key, .size = o->size};
		struct cache_opened **quick = quick_of(cache, o->place, &was);

		if (*quick == o)
			*quick = NULL;
	}
	free(o->key);
	free(o->etag);
	o->key = o->etag = NULL;
}

void cache_opened_name(struct store_cache *cache, struct cache_opened *o,
	const struct url_place *place, const struct object *object)
{
	forget_name(cache, o);
	o->place = place;
	o->size = object->size;
	o->piece = object->piece;
	o->key = strdup(object->key);
	o->etag = object->etag ? strdup(object->etag) : NULL;
	if (!o->key || (object->etag && !o->etag)) {
		free(o->key);
		free(o->etag);
		o->key = o->etag = NULL; /* it is found by its hash */
		return;
	}
	*quick_of(cache, place, object) = o;
}

struct cache_entry *cache_opened_entry(struct store_cache *cache, struct cache_opened *o)
{
	struct cache_index *index = &cache->index;
	struct cache_entry *e = o->entry < index->count ? &index->entry[o->entry] : NULL;

	if (e && memcmp(e->hash.byte, o->hash.byte, CACHE_HASH_BYTES) == 0)
		return e;
	e = cache_index_find(index, &o->hash);
	if (e)
		o->entry = (size_t)(e - index->entry);
	return e;
}

/* Makes room for a descriptor in `by_fd`. False: out of memory. */
static bool know_fd(struct store_cache *cache, int fd)
{
	unsigned fds = (unsigned)fd + 1 + (unsigned)fd / 4;
	struct cache_opened **by_fd;

	if ((unsigned)fd < cache->fds)
		return true;
	by_fd = reallocarray(cache->by_fd, fds, sizeof(struct cache_opened *));
	if (!by_fd)
		return false;
	memset(by_fd + cache->fds, 0, (fds - cache->fds) * sizeof(struct cache_opened *));
	cache->by_fd = by_fd;
	cache->fds = fds;
	return true;
}

struct cache_opened *cache_opened_add(
	struct store_cache *cache, const struct cache_hash *hash, int fd)
{
	struct cache_opened *o = know_fd(cache, fd) ? calloc(1, sizeof(*o)) : NULL;

	if (!o) {
		close(fd);
		return NULL;
	}
	cache->by_fd[fd] = o;
	o->hash = *hash;
	o->fd = fd;
	o->users = 1;
	LIST_INSERT_HEAD(&cache->chain[chain_of(hash)], o, chain);
	cache->opened++;
	return o;
}

void cache_opened_use(struct store_cache *cache, struct cache_opened *o)
{
	if (o->users++ == 0) {
		TAILQ_REMOVE(&cache->idle, o, link);
		cache->idles--;
	}
}

/* Nobody finds it any more. Locked. */
static void take_out(struct store_cache *cache, struct cache_opened *o)
{
	assert(o->users == 0 && o->pins == 0);
	TAILQ_REMOVE(&cache->idle, o, link);
	LIST_REMOVE(o, chain);
	forget_name(cache, o);
	cache->by_fd[o->fd] = NULL;
	cache->opened--;
	cache->idles--;
}

static void opened_free(struct cache_opened *o)
{
	if (!o)
		return;
	close(o->fd);
	free(o->pinned);
	free(o);
}

void cache_opened_shrink(struct store_cache *cache, unsigned most)
{
	while (cache->idles > most) {
		struct cache_opened *o = TAILQ_FIRST(&cache->idle);

		take_out(cache, o);
		opened_free(o);
	}
}

void cache_opened_release(struct store_cache *cache, struct cache_opened *o)
{
	assert(o->users > 0);
	if (--o->users == 0) {
		TAILQ_INSERT_TAIL(&cache->idle, o, link);
		cache->idles++;
		cache_opened_shrink(cache, cache->idle_most);
	}
}

struct cache_opened *cache_opened_get(
	struct store_cache *cache, const struct cache_hash *hash, int *error)
{
	struct cache_opened *o = cache_opened_find(cache, hash);
	char name[CACHE_NAME_BYTES];
	int fd;

	if (o) {
		cache_opened_use(cache, o);
		return o;
	}
	cache_name(hash, ".data", name);
	pthread_mutex_unlock(&cache->lock);
	fd = openat(cache->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	*error = fd < 0 ? errno : 0;
	pthread_mutex_lock(&cache->lock);
	o = cache_opened_find(cache, hash);
	if (o) { /* opened by another thread meanwhile */
		if (fd >= 0)
			close(fd);
		cache_opened_use(cache, o);
		return o;
	}
	if (fd >= 0 && (!cache_index_find(&cache->index, hash) || unlinked(fd))) {
		close(fd);
		*error = ENOENT;
		fd = -1;
	}
	if (fd < 0)
		return NULL;
	o = cache_opened_add(cache, hash, fd);
	*error = o ? 0 : ENOMEM;
	return o;
}

/* ---- pins ---- */

static struct cache_pinned *find_pin(const struct cache_opened *o, uint64_t piece)
{
	for (unsigned i = 0; i < o->pins; i++)
		if (o->pinned[i].piece == piece)
			return &o->pinned[i];
	return NULL;
}

unsigned cache_pins(const struct cache_opened *o, uint64_t piece)
{
	const struct cache_pinned *pin = find_pin(o, piece);

	return pin ? pin->count : 0;
}

bool cache_pin_add(struct store_cache *cache, struct cache_opened *o, uint64_t piece)
{
	struct cache_pinned *pin = find_pin(o, piece);

	if (!pin) {
		if (o->pins == o->pins_room) {
			unsigned room = 2 * o->pins_room + 4;
			struct cache_pinned *more = realloc(o->pinned, room * sizeof(*more));

			if (!more)
				return false;
			o->pinned = more;
			o->pins_room = room;
		}
		pin = &o->pinned[o->pins++];
		*pin = (struct cache_pinned){.piece = piece};
	}
	cache->pins += pin->count == 0;
	pin->count++;
	return true;
}

void cache_pin_remove(struct store_cache *cache, struct cache_opened *o, uint64_t piece)
{
	struct cache_pinned *pin = find_pin(o, piece);

	assert(pin && pin->count > 0);
	if (--pin->count > 0)
		return;
	*pin = o->pinned[--o->pins];
	cache->pins--;
}

/* ---- entries ---- */

void cache_forget(struct store_cache *cache, struct cache_entry *entry)
{
	cache->used -= cache_entry_blocks(entry);
	cache_index_remove(&cache->index, entry);
}

void cache_remove_empty(struct store_cache *cache, const struct cache_hash *hash)
{
	struct cache_entry *e;
	struct cache_opened *o;
	bool empty;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, hash);
	o = cache_opened_find(cache, hash);
	empty = e && cache_entry_present(e) == 0 && (!o || o->users == 0);
	if (empty)
		cache_forget(cache, e);
	if (empty && o)
		take_out(cache, o);
	pthread_mutex_unlock(&cache->lock);
	if (!empty)
		return;
	cache_files_remove(cache->dir, hash);
	opened_free(o);
}
