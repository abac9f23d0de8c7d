/* Evicting pieces: which, and how. Private to the cache. */
#ifndef TOKEND_STORE_CACHE_EVICT_H
#define TOKEND_STORE_CACHE_EVICT_H

#include "daemon/store/cache_state.h"

/*
 * Evicts pieces until @bytes more fit. The caller holds `growing`. @position: as
 * store_cache_write(). False: nothing more can be evicted.
 */
bool cache_make_room(struct store_cache *cache, uint64_t bytes, uint64_t position);
/* Forgets an object whose files cannot be read any more, unless it is in use. */
bool cache_forget_object(struct store_cache *cache, const struct cache_hash *hash);
/* Removes a piece whose sum is wrong, unless it is no longer in @state: it was removed or replaced
 * meanwhile. Returns whether it was. The caller holds `growing`. */
bool cache_drop_wrong(
	struct store_cache *cache, const struct cache_hash *hash, uint64_t piece, unsigned state);

#endif
