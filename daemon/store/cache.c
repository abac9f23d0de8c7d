#include "daemon/store/cache.h"

#include "daemon/store/cache_evict.h"
#include "daemon/store/cache_state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct cache_write {
	struct store_cache *cache;
	struct cache_opened *opened;
	struct cache_hash hash;
	uint64_t piece, at;   /* its number; where it begins */
	uint64_t bytes, done; /* of it in all; so far */
	bool failed;
	XXH64_state_t sum;
};

/* ---- reading ---- */

/* The object's open file. NULL: it is not open, and *@pin says what to do. Locked; unlocked
 * meanwhile if the object has to be searched by its hash. */
static struct cache_opened *find_opened(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t first, uint64_t last, uint64_t *piece,
	enum cache_pin *pin)
{
	struct cache_opened *o = cache_opened_quick(cache, place, object);
	struct cache_entry *e = NULL;
	struct cache_head head;
	struct cache_hash hash;

	if (o)
		return o;
	pthread_mutex_unlock(&cache->lock);
	bool fits = cache_head_of(place, object, &head, &hash);

	pthread_mutex_lock(&cache->lock);
	o = fits ? cache_opened_find(cache, &hash) : NULL;
	if (o) {
		cache_opened_name(cache, o, place, object);
		return o;
	}
	e = fits ? cache_index_find(&cache->index, &hash) : NULL;
	*piece = first;
	*pin = e ? CACHE_UNVERIFIED : CACHE_ABSENT;
	for (uint64_t i = first; e && i <= last; i++)
		if (!cache_entry_get(e, i)) {
			*piece = i;
			*pin = CACHE_ABSENT;
			break;
		}
	return NULL;
}

static enum cache_pin pin_pieces(struct store_cache *cache, struct cache_opened *o, uint64_t first,
	uint64_t last, uint64_t *piece)
{
	const struct cache_entry *e = cache_opened_entry(cache, o);

	for (*piece = first; *piece <= last; ++*piece) {
		unsigned state = e ? cache_entry_get(e, *piece) : 0;

		if (state == 0)
			return CACHE_ABSENT;
		if (state < CACHE_PIECE_VERIFIED)
			return CACHE_UNVERIFIED;
	}
	for (*piece = first; *piece <= last; ++*piece)
		if (!cache_pin_add(cache, o, *piece)) {
			while (*piece > first)
				cache_pin_remove(cache, o, --*piece);
			return CACHE_ABSENT;
		}
	cache_opened_use(cache, o);
	cache->hits += last - first + 1;
	return CACHE_PINNED;
}

enum cache_pin store_cache_pin(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t at, uint64_t n, int *fd, uint64_t *piece)
{
	uint64_t first = at / object->piece, last = (at + n - 1) / object->piece;
	enum cache_pin pin = CACHE_UNVERIFIED;
	struct cache_opened *o = NULL;

	assert(n > 0 && at + n <= object->size);
	*piece = first;
	pthread_mutex_lock(&cache->lock);
	if (cache->scanned)
		o = find_opened(cache, place, object, first, last, piece, &pin);
	if (o)
		pin = pin_pieces(cache, o, first, last, piece);
	if (pin == CACHE_PINNED)
		*fd = o->fd;
	pthread_mutex_unlock(&cache->lock);
	return pin;
}

bool store_cache_lacks(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece)
{
	enum cache_pin pin = CACHE_UNVERIFIED;
	struct cache_opened *o = NULL;
	const struct cache_entry *e;
	uint64_t missing;

	pthread_mutex_lock(&cache->lock);
	if (cache->scanned)
		o = find_opened(cache, place, object, piece, piece, &missing, &pin);
	e = o ? cache_opened_entry(cache, o) : NULL;
	bool lacks = o ? !e || cache_entry_get(e, piece) == 0 : pin == CACHE_ABSENT;

	pthread_mutex_unlock(&cache->lock);
	return lacks;
}

void store_cache_unpin(struct store_cache *cache, int fd, uint64_t at, uint64_t n)
{
	struct cache_opened *o;

	pthread_mutex_lock(&cache->lock);
	assert(fd >= 0 && (unsigned)fd < cache->fds && cache->by_fd[fd]);
	o = cache->by_fd[fd]; /* its pins keep it open */
	for (uint64_t i = at / o->piece; i <= (at + n - 1) / o->piece; i++)
		cache_pin_remove(cache, o, i);
	cache_opened_release(cache, o);
	pthread_mutex_unlock(&cache->lock);
}

/* ---- verifying ---- */

/* Pins a piece that is present, verified or not. NULL: it is not, or cannot be opened. Locked. */
static struct cache_opened *pin_unverified(
	struct store_cache *cache, const struct cache_hash *hash, uint64_t piece, int *error)
{
	struct cache_entry *e = cache_index_find(&cache->index, hash);
	struct cache_opened *o;

	*error = 0;
	if (!e || !cache_entry_get(e, piece))
		return NULL;
	o = cache_opened_get(cache, hash, error); /* may unlock meanwhile */
	e = cache_index_find(&cache->index, hash);
	if (!o)
		return NULL;
	if (e && cache_entry_get(e, piece) && cache_pin_add(cache, o, piece))
		return o;
	cache_opened_release(cache, o);
	return NULL;
}

/* The state of a piece, of which at least one thread has the file open. */
static unsigned state_of(
	const struct store_cache *cache, const struct cache_hash *hash, uint64_t piece)
{
	const struct cache_entry *e = cache_index_find(&cache->index, hash);

	return e ? cache_entry_get(e, piece) : 0;
}

static void verified(struct store_cache *cache, const struct cache_hash *hash, uint64_t piece)
{
	if (state_of(cache, hash, piece) == CACHE_PIECE_PRESENT)
		cache_entry_set(&cache->index, cache_index_find(&cache->index, hash), piece,
			CACHE_PIECE_VERIFIED);
}

/* Compares a piece with its sum. 0 or an errno. */
static int check_piece(struct store_cache *cache, const struct cache_opened *o,
	const struct object *object, uint64_t piece, bool *right)
{
	uint64_t at = piece * object->piece, stored, found = 0;
	int error = cache_sum_read(cache->dir, &o->hash, piece, &stored);

	if (!error)
		error = cache_sum_of(
			o->fd, at, cache_piece_bytes(object->size, object->piece, piece), &found);
	*right = !error && stored == found;
	return error;
}

/* The first one in CACHE_RETRY_S: a damaged disk has many. The caller holds `growing`. */
static void say_damaged(struct store_cache *cache, const char *key, uint64_t piece)
{
	char line[LIMIT_TEXT_BYTES];
	int64_t now = cache_now_ms();

	if (now < cache->wrong_until_ms || !cache->log)
		return;
	cache->wrong_until_ms = now + CACHE_RETRY_S * 1000;
	snprintf(line, sizeof(line),
		"cache %s: piece %" PRIu64
		" of %s differs from its sum; it is fetched again. If that happens "
		"again, look for errors of the disk",
		cache->path, piece, key);
	cache->log(cache->log_context, line);
}

void store_cache_verify(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece)
{
	unsigned state = 0;
	struct cache_opened *o = NULL;
	struct cache_head head;
	struct cache_hash hash;
	int error = 0;
	bool right = true, fits = cache_head_of(place, object, &head, &hash);

	pthread_mutex_lock(&cache->lock);
	while (!cache->scanned)
		pthread_cond_wait(&cache->scan_ended, &cache->lock);
	if (fits)
		o = pin_unverified(cache, &hash, piece, &error);
	if (o) {
		cache_opened_name(cache, o, place, object);
		state = state_of(cache, &hash, piece);
	}
	pthread_mutex_unlock(&cache->lock);
	if (!o && !error)
		return;
	if (o && state < CACHE_PIECE_VERIFIED)
		error = check_piece(cache, o, object, piece, &right);
	if (error && error != ENOENT && error != EBADMSG)
		cache_failed(cache, error, "cannot read a piece");
	pthread_mutex_lock(&cache->lock);
	if (o && right)
		verified(cache, &hash, piece);
	if (o) {
		cache_pin_remove(cache, o, piece);
		cache_opened_release(cache, o);
	}
	pthread_mutex_unlock(&cache->lock);
	if (!error && right)
		return;
	pthread_mutex_lock(&cache->growing);
	if (!o)
		cache_forget_object(cache, &hash);
	else if (cache_drop_wrong(cache, &hash, piece, state) && !error)
		say_damaged(cache, object->key, piece);
	pthread_mutex_unlock(&cache->growing);
}

/* ---- writing ---- */

/* Adds an object without pieces. Its open file has one user more. NULL: the disk failed. The caller
 * holds `growing`. */
static struct cache_opened *add_object(struct store_cache *cache, const struct cache_head *head,
	const struct cache_hash *hash, const struct object *object)
{
	struct cache_opened *o = NULL;
	struct cache_entry *e;
	int fd, error = 0;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, hash);
	if (e)
		o = cache_opened_get(cache, hash, &error);
	pthread_mutex_unlock(&cache->lock);
	/* Somebody else removed its files: they are made again. */
	if (e && !o && error == ENOENT && cache_forget_object(cache, hash))
		e = NULL;
	if (e && !o)
		cache_failed(cache, error, "cannot open a file");
	if (e)
		return o;
	fd = cache_files_create(cache->dir, hash, head);
	if (fd < 0) {
		cache_failed(cache, -fd, "cannot create a file");
		return NULL;
	}
	pthread_mutex_lock(&cache->lock);
	o = cache_opened_add(cache, hash, fd);
	e = o ? cache_index_add(&cache->index, hash, object->size, object->piece) : NULL;
	if (e)
		cache->used += cache_entry_blocks(e);
	else if (o)
		cache_opened_release(cache, o);
	pthread_mutex_unlock(&cache->lock);
	return e ? o : NULL;
}

/* Reserves the blocks of a piece and opens its file. NULL: not now. The caller holds `growing`. */
static struct cache_opened *reserve(struct store_cache *cache, const struct cache_head *head,
	const struct cache_hash *hash, const struct object *object, uint64_t piece,
	uint64_t position)
{
	uint64_t bytes = cache_blocks(cache_piece_bytes(object->size, object->piece, piece));
	uint64_t sums = cache_blocks(cache_sums_bytes(cache_pieces(object->size, object->piece)));
	struct cache_opened *o;
	struct cache_entry *e;
	bool present;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, hash);
	present = e && cache_entry_get(e, piece);
	cache->misses += position == UINT64_MAX;
	pthread_mutex_unlock(&cache->lock);
	if (present || !cache_make_room(cache, bytes + sums, position))
		return NULL;
	o = add_object(cache, head, hash, object);
	pthread_mutex_lock(&cache->lock);
	if (o)
		cache->used += bytes;
	if (o && position != UINT64_MAX)
		cache->misses++; /* of the read that comes later */
	pthread_mutex_unlock(&cache->lock);
	return o;
}

struct cache_write *store_cache_write(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece, uint64_t position)
{
	struct cache_write *w = aligned_alloc(64, (sizeof(*w) + 63) / 64 * 64);
	struct cache_head head;

	if (!w)
		return NULL;
	*w = (struct cache_write){
		.cache = cache,
		.piece = piece,
		.at = piece * object->piece,
		.bytes = cache_piece_bytes(object->size, object->piece, piece),
	};
	XXH64_reset(&w->sum, 0);
	if (cache_head_of(place, object, &head, &w->hash)) {
		pthread_mutex_lock(&cache->growing);
		w->opened = reserve(cache, &head, &w->hash, object, piece, position);
		pthread_mutex_unlock(&cache->growing);
	}
	if (w->opened)
		return w;
	free(w);
	return NULL;
}

bool store_cache_append(struct cache_write *w, const void *bytes, size_t n)
{
	uint64_t at = w->at + w->done;
	size_t done = 0;

	if (n > w->bytes - w->done)
		return false;
	XXH64_update(&w->sum, bytes, n);
	w->done += n;
	while (!w->failed && done < n) {
		ssize_t put = pwrite(
			w->opened->fd, (const char *)bytes + done, n - done, (off_t)(at + done));

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			cache_failed(w->cache, put < 0 ? errno : EIO, "cannot write a piece");
			w->failed = true;
			break;
		}
		done += (size_t)put;
	}
	return !w->failed;
}

bool store_cache_end(struct cache_write *w, bool keep)
{
	struct store_cache *cache = w->cache;
	uint64_t sum = XXH64_digest(&w->sum);
	bool kept = keep && !w->failed && w->done == w->bytes;
	struct cache_entry *e;
	int error = 0;

	if (kept) {
		error = cache_sum_write(cache->dir, &w->hash, w->piece, sum ? sum : 1);
		if (error)
			cache_failed(cache, error, "cannot write a sum");
		kept = !error;
	}
	if (!kept)
		cache_punch(w->opened->fd, w->at, w->bytes);
	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, &w->hash);
	kept = kept && e;
	if (kept)
		cache_entry_set(&cache->index, e, w->piece, CACHE_PIECE_VERIFIED);
	else
		cache->used -= cache_blocks(w->bytes);
	cache_opened_release(cache, w->opened);
	pthread_mutex_unlock(&cache->lock);
	if (!kept) {
		pthread_mutex_lock(&cache->growing);
		/* Somebody else removed its files: they are made again by the next piece. */
		if (error != ENOENT || !cache_forget_object(cache, &w->hash))
			cache_remove_empty(cache, &w->hash);
		pthread_mutex_unlock(&cache->growing);
	}
	free(w);
	return kept;
}
