/* Opening the cache, and finding the pieces that an earlier daemon left. */
#include "daemon/store/cache.h"
#include "daemon/store/cache_evict.h"
#include "daemon/store/cache_state.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct store_cache *store_cache_open(const struct store_cache_options *options, struct fault *fault)
{
	struct store_cache *cache = calloc(1, sizeof(*cache));

	if (!cache) {
		fault_memory(fault);
		return NULL;
	}
	cache->dir = cache_dir_open(options->dir, options->size, fault);
	if (cache->dir < 0 || !cache_dir_lock(cache->dir, options->dir, fault)) {
		if (cache->dir >= 0)
			close(cache->dir);
		free(cache);
		return NULL;
	}
	snprintf(cache->path, sizeof(cache->path), "%s", options->dir);
	cache->size = options->size;
	cache->log = options->log;
	cache->log_context = options->log_context;
	cache->idle_most = options->files;
	if (getrandom(&cache->random, sizeof(cache->random), GRND_NONBLOCK) < 0)
		cache->random = (uint64_t)cache_now_ms();
	pthread_mutex_init(&cache->growing, NULL);
	pthread_mutex_init(&cache->lock, NULL);
	pthread_cond_init(&cache->scan_ended, NULL);
	TAILQ_INIT(&cache->idle);
	return cache;
}

void store_cache_close(struct store_cache *cache)
{
	if (!cache)
		return;
	/* Nobody reads any more, but what was pinned for a read that never came is in use. */
	for (unsigned i = 0; i < CACHE_CHAINS; i++) {
		struct cache_opened *o, *next;

		for (o = LIST_FIRST(&cache->chain[i]); o; o = next) {
			next = LIST_NEXT(o, chain);
			o->pins = 0;
			while (o->users > 0)
				cache_opened_release(cache, o);
		}
	}
	cache_opened_shrink(cache, 0);
	assert(cache->opened == 0);
	cache_index_free(&cache->index);
	free(cache->by_fd);
	pthread_cond_destroy(&cache->scan_ended);
	pthread_mutex_destroy(&cache->lock);
	pthread_mutex_destroy(&cache->growing);
	close(cache->dir);
	free(cache);
}

void store_cache_needs(struct store_cache *cache, store_next_use *next_use, const void *context)
{
	cache->next_use = next_use;
	cache->next_use_context = context;
}

/* ---- the scan ---- */

/* Reads all sums of an object. Owned by the caller. NULL: they cannot be read. */
static uint64_t *read_sums(
	struct store_cache *cache, const struct cache_hash *hash, uint64_t pieces)
{
	char name[CACHE_NAME_BYTES];
	size_t bytes = pieces * sizeof(uint64_t);
	uint64_t *sums = NULL;
	int fd;

	cache_name(hash, ".sums", name);
	fd = openat(cache->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return NULL;

	struct stat st;

	/* The header alone proves nothing: the file must have its length. */
	if (fstat(fd, &st) == 0 && (uint64_t)st.st_size == cache_sums_bytes(pieces))
		sums = malloc(bytes);
	if (sums && pread(fd, sums, bytes, CACHE_HEAD_BYTES) != (ssize_t)bytes) {
		free(sums);
		sums = NULL;
	}
	close(fd);
	return sums;
}

/* Frees blocks of pieces that were half written: @extra more than those of present pieces. */
static void free_leftovers(struct store_cache *cache, const struct cache_head *head,
	const struct cache_hash *hash, const uint64_t *sums)
{
	uint64_t pieces = cache_pieces(head->size, head->piece), blocks = 0;
	char name[CACHE_NAME_BYTES];
	struct stat st;
	int fd;

	for (uint64_t i = 0; i < pieces; i++)
		if (sums[i])
			blocks += cache_blocks(cache_piece_bytes(head->size, head->piece, i));
	cache_name(hash, ".data", name);
	fd = openat(cache->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 > blocks)
		for (uint64_t i = 0; i < pieces; i++)
			if (!sums[i])
				cache_punch(fd, i * head->piece,
					cache_piece_bytes(head->size, head->piece, i));
	close(fd);
}

static void index_object(struct store_cache *cache, const struct cache_head *head,
	const struct cache_hash *hash, const uint64_t *sums)
{
	uint64_t pieces = cache_pieces(head->size, head->piece);
	struct cache_entry *e;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_add(&cache->index, hash, head->size, head->piece);
	for (uint64_t i = 0; e && i < pieces; i++)
		if (sums[i])
			cache_entry_set(&cache->index, e, i, CACHE_PIECE_PRESENT);
	if (e)
		cache->used += cache_entry_blocks(e);
	pthread_mutex_unlock(&cache->lock);
	cache_remove_empty(cache, hash);
}

static void scan_object(struct store_cache *cache, const struct cache_hash *hash)
{
	struct cache_head head;
	char name[CACHE_NAME_BYTES];
	struct stat st;
	uint64_t *sums = NULL;

	cache_name(hash, ".data", name);
	if (cache_head_read(cache->dir, hash, &head) == 0 &&
		fstatat(cache->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
		(uint64_t)st.st_size == head.size)
		sums = read_sums(cache, hash, cache_pieces(head.size, head.piece));
	if (!sums) {
		cache_files_remove(cache->dir, hash);
		return;
	}
	free_leftovers(cache, &head, hash, sums);
	index_object(cache, &head, hash, sums);
	free(sums);
}

/* One of the 256 directories, twice: files of sums, then data that have none. */
static void scan_directory(struct store_cache *cache, unsigned number)
{
	for (int pass = 0; pass < 2; pass++) {
		char sub[3];
		int fd;
		DIR *dir;
		const struct dirent *entry;
		struct cache_hash hash;

		snprintf(sub, sizeof(sub), "%02x", number & 0xFF);
		fd = openat(cache->dir, sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		dir = fd >= 0 ? fdopendir(fd) : NULL;
		if (!dir) {
			if (fd >= 0)
				close(fd);
			return;
		}
		while ((entry = readdir(dir))) {
			if (pass == 0 && cache_name_parse(entry->d_name, ".sums", &hash))
				scan_object(cache, &hash);
			if (pass == 1 && cache_name_parse(entry->d_name, ".data", &hash) &&
				!cache_index_find(&cache->index, &hash))
				cache_files_remove(cache->dir, &hash);
		}
		closedir(dir);
	}
}

void store_cache_scan(struct store_cache *cache)
{
	pthread_mutex_lock(&cache->growing);
	for (unsigned i = 0; i < 256; i++)
		scan_directory(cache, i);
	cache_make_room(cache, 0, UINT64_MAX); /* if the size was reduced */
	pthread_mutex_unlock(&cache->growing);
	pthread_mutex_lock(&cache->lock);
	cache->scanned = true;
	pthread_cond_broadcast(&cache->scan_ended);
	pthread_mutex_unlock(&cache->lock);
}

/* ---- for status ---- */

void store_cache_state(struct store_cache *cache, struct store_cache_status *status)
{
	int64_t now = cache_now_ms();

	*status = (struct store_cache_status){.size_bytes = cache->size};
	memcpy(status->dir, cache->path, sizeof(status->dir));
	pthread_mutex_lock(&cache->lock);
	status->used_bytes = cache->used;
	status->objects = cache->index.count;
	status->hits = cache->hits;
	status->misses = cache->misses;
	status->evictions = cache->evictions;
	status->mismatches = cache->mismatches;
	status->pinned = cache->pins;
	if (now < cache->failing_until_ms)
		status->failing_s = (unsigned)((cache->failing_until_ms - now + 999) / 1000);
	memcpy(status->last, cache->last, sizeof(status->last));
	status->last_ago_s = cache->last[0] ? (now - cache->failed_ms) / 1000 : 0;
	pthread_mutex_unlock(&cache->lock);
}

uint64_t store_cache_memory(struct store_cache *cache)
{
	pthread_mutex_lock(&cache->lock);

	uint64_t bytes = cache->index.room * sizeof(struct cache_entry) + cache->index.bits_bytes;

	pthread_mutex_unlock(&cache->lock);
	return bytes;
}
