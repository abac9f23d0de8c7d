#include "daemon/store/cache_evict.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct victim {
	struct cache_hash hash;
	uint64_t piece;
	uint64_t use; /* position at which it is needed next */
	bool exact;
	struct cache_head head;
};

static uint64_t next_random(void *context)
{
	struct store_cache *cache = context;

	cache->random += ORDER_MUL_1;
	return order_mix64(cache->random);
}

/* ---- removing one piece ---- */

/* Takes a piece out of the index, so that nobody begins to read it. False: it is pinned, or absent.
 * Locked. */
static bool take_out(struct store_cache *cache, const struct cache_hash *hash, uint64_t piece)
{
	struct cache_entry *e = cache_index_find(&cache->index, hash);
	struct cache_opened *o = cache_opened_find(cache, hash);

	if (!e || !cache_entry_get(e, piece) || (o && cache_pins(o, piece) > 0))
		return false;
	cache_entry_set(&cache->index, e, piece, 0);
	return true;
}

/* Removes a piece: its sum first, then its blocks. False: it stays. The caller holds `growing`. */
static bool remove_piece(struct store_cache *cache, const struct cache_hash *hash, uint64_t piece,
	const struct cache_head *head)
{
	uint64_t bytes = cache_piece_bytes(head->size, head->piece, piece);
	struct cache_opened *o;
	int error = 0;

	pthread_mutex_lock(&cache->lock);
	if (!take_out(cache, hash, piece)) {
		pthread_mutex_unlock(&cache->lock);
		return false;
	}
	o = cache_opened_get(cache, hash, &error);
	pthread_mutex_unlock(&cache->lock);
	if (o)
		error = cache_sum_write(cache->dir, hash, piece, 0);
	if (!error)
		error = cache_punch(o->fd, piece * head->piece, bytes);
	/* Files that somebody else removed have no blocks. */
	if (error == ENOENT)
		error = 0;
	if (error)
		cache_failed(cache, error, "cannot remove a piece");
	pthread_mutex_lock(&cache->lock);
	if (o)
		cache_opened_release(cache, o);
	if (!error) /* otherwise its blocks may still be there */
		cache->used -= cache_blocks(bytes);
	pthread_mutex_unlock(&cache->lock);
	cache_remove_empty(cache, hash);
	return true;
}

bool cache_forget_object(struct store_cache *cache, const struct cache_hash *hash)
{
	struct cache_entry *e;
	struct cache_opened *o;
	bool idle;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, hash);
	o = cache_opened_find(cache, hash);
	idle = e && (!o || o->users == 0);
	if (idle) {
		for (uint64_t i = 0; i < e->pieces; i++) {
			if (cache_entry_get(e, i))
				cache->used -= cache_entry_piece_blocks(e, i);
			cache_entry_set(&cache->index, e, i, 0);
		}
	}
	pthread_mutex_unlock(&cache->lock);
	if (idle)
		cache_remove_empty(cache, hash);
	return idle;
}

bool cache_drop_wrong(
	struct store_cache *cache, const struct cache_hash *hash, uint64_t piece, unsigned state)
{
	struct cache_head head;
	struct cache_entry *e;
	bool wrong;

	pthread_mutex_lock(&cache->lock);
	e = cache_index_find(&cache->index, hash);
	wrong = e && cache_entry_get(e, piece) == state;
	pthread_mutex_unlock(&cache->lock);
	if (!wrong)
		return false;
	if (cache_head_read(cache->dir, hash, &head) != 0)
		wrong = cache_forget_object(cache, hash);
	else
		wrong = remove_piece(cache, hash, piece, &head);
	pthread_mutex_lock(&cache->lock);
	cache->mismatches += wrong;
	pthread_mutex_unlock(&cache->lock);
	return wrong;
}

/* ---- choosing ---- */

static bool drawn_before(
	const struct victim *victim, unsigned n, const struct cache_hash *hash, uint64_t piece)
{
	for (unsigned i = 0; i < n; i++)
		if (victim[i].piece == piece &&
			memcmp(victim[i].hash.byte, hash->byte, CACHE_HASH_BYTES) == 0)
			return true;
	return false;
}

/* Draws up to CACHE_DRAWN different pieces that are not pinned. */
static unsigned draw(struct store_cache *cache, struct victim *victim)
{
	unsigned n = 0;

	pthread_mutex_lock(&cache->lock);
	for (unsigned tries = 0; n < CACHE_DRAWN && tries < 16 * CACHE_DRAWN; tries++) {
		uint64_t piece;
		struct cache_entry *e = cache_index_draw(&cache->index, next_random, cache, &piece);
		struct cache_opened *o = e ? cache_opened_find(cache, &e->hash) : NULL;

		if (!e)
			break;
		if ((o && cache_pins(o, piece) > 0) || drawn_before(victim, n, &e->hash, piece))
			continue;
		victim[n].hash = e->hash;
		victim[n].piece = piece;
		n++;
	}
	pthread_mutex_unlock(&cache->lock);
	return n;
}

static uint64_t use_of(struct store_cache *cache, const struct victim *v, bool exact)
{
	if (!cache->next_use)
		return UINT64_MAX;
	return cache->next_use(cache->next_use_context, cache_head_url(&v->head),
		cache_head_etag(&v->head), v->piece * v->head.piece,
		cache_piece_bytes(v->head.size, v->head.piece, v->piece), exact);
}

/* The one that is needed last; NULL: none is needed after @position. A sample of windows may miss
 * the next one, so what it says about the chosen piece is checked with all windows. */
static struct victim *last_needed(
	struct store_cache *cache, struct victim *victim, unsigned n, uint64_t position)
{
	struct victim *last;

	for (;;) {
		last = &victim[0];
		for (unsigned i = 1; i < n; i++)
			if (victim[i].use > last->use)
				last = &victim[i];
		if (position != UINT64_MAX && last->use <= position)
			return NULL;
		if (last->exact)
			return last;
		last->use = use_of(cache, last, true);
		last->exact = true;
	}
}

/* False: nothing can be evicted for something that is needed at @position. */
static bool evict_one(struct store_cache *cache, struct victim *victim, uint64_t position)
{
	unsigned drawn = draw(cache, victim), n = 0;
	struct victim *last;

	for (unsigned i = 0; i < drawn; i++) {
		victim[n] = victim[i];
		if (cache_head_read(cache->dir, &victim[n].hash, &victim[n].head) != 0) {
			if (cache_forget_object(cache, &victim[n].hash))
				return true;
			continue;
		}
		victim[n].use = use_of(cache, &victim[n], false);
		victim[n].exact = !cache->next_use;
		n++;
	}
	if (n == 0)
		return false;
	last = last_needed(cache, victim, n, position);
	if (!last)
		return false;
	/* Pinned meanwhile: another one is drawn. */
	if (remove_piece(cache, &last->hash, last->piece, &last->head)) {
		pthread_mutex_lock(&cache->lock);
		cache->evictions++;
		pthread_mutex_unlock(&cache->lock);
	}
	return true;
}

enum room { ROOM_FULL, ROOM_FITS, ROOM_FAILING };

static enum room room_for(struct store_cache *cache, uint64_t bytes)
{
	pthread_mutex_lock(&cache->lock);

	bool fits = cache->used + bytes <= cache->size;
	bool failing = cache_now_ms() < cache->failing_until_ms;

	pthread_mutex_unlock(&cache->lock);
	return failing ? ROOM_FAILING : fits ? ROOM_FITS : ROOM_FULL;
}

bool cache_make_room(struct store_cache *cache, uint64_t bytes, uint64_t position)
{
	struct victim *victim;
	enum room room = room_for(cache, bytes);

	if (room != ROOM_FULL)
		return room == ROOM_FITS;
	victim = calloc(CACHE_DRAWN, sizeof(*victim));
	while (victim && room == ROOM_FULL && evict_one(cache, victim, position))
		room = room_for(cache, bytes);
	free(victim);
	return room == ROOM_FITS;
}

/* ---- by name ---- */

/* A copy of all hashes. Owned by the caller. NULL: none, or out of memory. */
static struct cache_hash *all_hashes(struct store_cache *cache, size_t *n)
{
	struct cache_hash *hash;

	pthread_mutex_lock(&cache->lock);
	*n = cache->index.count;
	hash = *n > 0 ? malloc(*n * sizeof(*hash)) : NULL;
	for (size_t i = 0; hash && i < *n; i++)
		hash[i] = cache->index.entry[i].hash;
	pthread_mutex_unlock(&cache->lock);
	if (!hash)
		*n = 0;
	return hash;
}

uint64_t store_cache_drop(struct store_cache *cache, const char *url, uint64_t most)
{
	size_t n;
	struct cache_hash *hash = all_hashes(cache, &n);
	uint64_t dropped = 0;

	for (size_t i = 0; i < n && dropped < most; i++) {
		struct cache_head head;

		if (cache_head_read(cache->dir, &hash[i], &head) != 0 ||
			strncmp(cache_head_url(&head), url, strlen(url)) != 0)
			continue;
		uint64_t pieces = cache_pieces(head.size, head.piece);

		/* Let go of it between pieces, so that those that are read do not wait. */
		for (uint64_t piece = 0; piece < pieces && dropped < most; piece++) {
			pthread_mutex_lock(&cache->growing);
			dropped += remove_piece(cache, &hash[i], piece, &head);
			pthread_mutex_unlock(&cache->growing);
		}
	}
	free(hash);
	return dropped;
}

void store_cache_list(struct store_cache *cache,
	void (*each)(void *context, const char *url, uint64_t pieces, uint64_t bytes),
	void *context)
{
	size_t n;
	struct cache_hash *hash = all_hashes(cache, &n);

	for (size_t i = 0; i < n; i++) {
		struct cache_head head;
		struct cache_entry *e;
		uint64_t present, bytes;

		if (cache_head_read(cache->dir, &hash[i], &head) != 0)
			continue;
		pthread_mutex_lock(&cache->lock);
		e = cache_index_find(&cache->index, &hash[i]);
		present = e ? cache_entry_present(e) : 0;
		bytes = e ? cache_entry_blocks(e) : 0;
		pthread_mutex_unlock(&cache->lock);
		if (present > 0)
			each(context, cache_head_url(&head), present, bytes);
	}
	free(hash);
}
