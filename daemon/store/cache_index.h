/*
 * Which pieces are in the cache: 32 bytes an object of up to 32 pieces, and 2 bits for each further
 * piece. Names are in the files. The caller locks. Private to the cache.
 */
#ifndef TOKEND_STORE_CACHE_INDEX_H
#define TOKEND_STORE_CACHE_INDEX_H

#include "daemon/store/cache_files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The state of a piece; 0: absent. */
enum {
	CACHE_PIECE_PRESENT = 1,
	CACHE_PIECE_VERIFIED, /* since the start, with the sum in the cache */
};

struct cache_entry {
	struct cache_hash hash;
	union {
		uint64_t word;	/* of up to 32 pieces */
		uint64_t *more; /* owned */
	} bits;
	uint32_t pieces;
	uint16_t last_blocks; /* CACHE_BLOCKs of the last piece, which may be shorter */
	uint8_t piece_log2;
};

_Static_assert(sizeof(struct cache_entry) == 32, "10^5 objects take 3.2 MB");

struct cache_index {
	struct cache_entry *entry; /* [count], ascending */
	size_t count, room;
	uint64_t present;    /* pieces of all entries */
	uint64_t bits_bytes; /* of entries with more than 32 pieces */
	uint32_t largest;    /* pieces of any entry so far */
};

void cache_index_free(struct cache_index *index);
/* NULL: there is none. Valid until the next add or remove. */
struct cache_entry *cache_index_find(
	const struct cache_index *index, const struct cache_hash *hash);
/* Adds an object without pieces, or returns the one that is there. NULL: out of memory. */
struct cache_entry *cache_index_add(
	struct cache_index *index, const struct cache_hash *hash, uint64_t size, uint64_t piece);
void cache_index_remove(struct cache_index *index, struct cache_entry *entry);

unsigned cache_entry_get(const struct cache_entry *entry, uint64_t piece);
void cache_entry_set(
	struct cache_index *index, struct cache_entry *entry, uint64_t piece, unsigned state);
uint64_t cache_entry_present(const struct cache_entry *entry);
/* Bytes of disk blocks: of one piece, and of all present ones with the file of sums. */
uint64_t cache_entry_piece_blocks(const struct cache_entry *entry, uint64_t piece);
uint64_t cache_entry_blocks(const struct cache_entry *entry);
/* A random present piece, each with the same probability. @random: a function of random numbers.
 * NULL: there is none. */
struct cache_entry *cache_index_draw(struct cache_index *index, uint64_t (*random)(void *context),
	void *context, uint64_t *piece);

#endif
