/*
 * State of the cache: the index, open files and pins. Private to the cache.
 *
 * `lock` protects the state and is never held while the disk works. `growing` is held by those who
 * write, evict or drop pieces; it is taken before `lock`.
 */
#ifndef TOKEND_STORE_CACHE_STATE_H
#define TOKEND_STORE_CACHE_STATE_H

#include "daemon/store/cache.h"
#include "daemon/store/cache_index.h"

#include <pthread.h>
#include <sys/queue.h>

enum { CACHE_CHAINS = 1024, CACHE_QUICK = 4096 };

struct cache_pinned {
	uint64_t piece;
	unsigned count;
};

/* An object whose file is open. */
struct cache_opened {
	LIST_ENTRY(cache_opened) chain;
	TAILQ_ENTRY(cache_opened) link; /* without users: least recently used first */
	struct cache_hash hash;
	/* The names by which it was found last, for a quick search; key is NULL if there are none
	 */
	const struct url_place *place;
	char *key, *etag;
	size_t entry; /* where its entry in the index was found last */
	uint64_t size;
	uint32_t piece;
	int fd;
	unsigned users;		     /* pins, verifications and writes */
	struct cache_pinned *pinned; /* [pins] */
	unsigned pins, pins_room;
};

struct store_cache {
	char path[256];
	uint64_t size;
	int dir; /* locked */
	void (*log)(void *context, const char *line);
	void *log_context;

	pthread_mutex_t growing;
	pthread_mutex_t lock;
	pthread_cond_t scan_ended;
	bool scanned;
	struct cache_index index;
	LIST_HEAD(, cache_opened) chain[CACHE_CHAINS];
	struct cache_opened *quick[CACHE_QUICK];
	struct cache_opened **by_fd; /* [fds] of their descriptors, for unpinning */
	unsigned fds;
	TAILQ_HEAD(, cache_opened) idle;
	unsigned opened, idles, idle_most; /* open files; of them, without users */
	store_next_use *next_use;
	const void *next_use_context;
	uint64_t random;
	uint64_t used; /* bytes of blocks, with those that are reserved */
	uint64_t hits, misses, evictions, mismatches, pins;
	int64_t failing_until_ms, failed_ms;
	int64_t wrong_until_ms; /* until then no damaged piece is logged */
	char last[160];
};

int64_t cache_now_ms(void);
/* Counts a fault of the disk: the cache does not grow for CACHE_RETRY_S. Not locked. */
void cache_failed(struct store_cache *cache, int error, const char *what);

/* ---- locked ---- */

/* NULL: its file is not open. */
struct cache_opened *cache_opened_find(struct store_cache *cache, const struct cache_hash *hash);
/* The same by the object's names, in less time. NULL: not found in that way. */
struct cache_opened *cache_opened_quick(
	struct store_cache *cache, const struct url_place *place, const struct object *object);
/* Lets cache_opened_quick() find it. */
void cache_opened_name(struct store_cache *cache, struct cache_opened *opened,
	const struct url_place *place, const struct object *object);
/* Adds an open file, with one user; takes over @fd, also if it fails. NULL: out of memory. */
struct cache_opened *cache_opened_add(
	struct store_cache *cache, const struct cache_hash *hash, int fd);
/* Its entry in the index, or NULL. */
struct cache_entry *cache_opened_entry(struct store_cache *cache, struct cache_opened *opened);
void cache_opened_use(struct store_cache *cache, struct cache_opened *opened);
void cache_opened_release(struct store_cache *cache, struct cache_opened *opened);
/* Its file, with one more user. Opens it if necessary, unlocked meanwhile. NULL: that failed, and
 * *@error is set. */
struct cache_opened *cache_opened_get(
	struct store_cache *cache, const struct cache_hash *hash, int *error);
/* Closes files that nobody uses, but @most of them. */
void cache_opened_shrink(struct store_cache *cache, unsigned most);

unsigned cache_pins(const struct cache_opened *opened, uint64_t piece);
/* False: out of memory. */
bool cache_pin_add(struct store_cache *cache, struct cache_opened *opened, uint64_t piece);
void cache_pin_remove(struct store_cache *cache, struct cache_opened *opened, uint64_t piece);

/* Forgets all pieces of an entry whose files are gone. */
void cache_forget(struct store_cache *cache, struct cache_entry *entry);

/* ---- not locked; the caller holds `growing` ---- */

/* Removes entry and files of an object that has no pieces and no users. */
void cache_remove_empty(struct store_cache *cache, const struct cache_hash *hash);

#endif
