#include "daemon/store/cache_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_PIECES = 32 };

static size_t words(uint32_t pieces)
{
	return (pieces + WORD_PIECES - 1) / WORD_PIECES;
}

static uint64_t *bits_of(const struct cache_entry *entry)
{
	return entry->pieces > WORD_PIECES ? entry->bits.more : (uint64_t *)&entry->bits.word;
}

void cache_index_free(struct cache_index *index)
{
	for (size_t i = 0; i < index->count; i++)
		if (index->entry[i].pieces > WORD_PIECES)
			free(index->entry[i].bits.more);
	free(index->entry);
	*index = (struct cache_index){0};
}

/* Where @hash is, or belongs. */
static size_t place_of(const struct cache_index *index, const struct cache_hash *hash)
{
	size_t lo = 0, hi = index->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (memcmp(index->entry[mid].hash.byte, hash->byte, CACHE_HASH_BYTES) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct cache_entry *cache_index_find(const struct cache_index *index, const struct cache_hash *hash)
{
	size_t at = place_of(index, hash);

	if (at == index->count ||
		memcmp(index->entry[at].hash.byte, hash->byte, CACHE_HASH_BYTES) != 0)
		return NULL;
	return &index->entry[at];
}

struct cache_entry *cache_index_add(
	struct cache_index *index, const struct cache_hash *hash, uint64_t size, uint64_t piece)
{
	struct cache_entry *entry = cache_index_find(index, hash);
	struct cache_entry new = {.hash = *hash, .pieces = (uint32_t)cache_pieces(size, piece)};
	size_t at = place_of(index, hash);

	if (entry)
		return entry;
	if (index->count == index->room) {
		size_t room = index->room + index->room / 8 + 64;

		entry = realloc(index->entry, room * sizeof(*entry));
		if (!entry)
			return NULL;
		index->entry = entry;
		index->room = room;
	}
	while (UINT64_C(1) << new.piece_log2 < piece)
		new.piece_log2++;
	new.last_blocks = (uint16_t)(cache_blocks(cache_piece_bytes(size, piece, new.pieces - 1)) /
				     CACHE_BLOCK);
	if (new.pieces > WORD_PIECES) {
		new.bits.more = calloc(words(new.pieces), sizeof(uint64_t));
		if (!new.bits.more)
			return NULL;
		index->bits_bytes += words(new.pieces) * sizeof(uint64_t);
	}
	if (new.pieces > index->largest)
		index->largest = new.pieces;
	entry = &index->entry[at];
	memmove(entry + 1, entry, (index->count - at) * sizeof(*entry));
	*entry = new;
	index->count++;
	return entry;
}

void cache_index_remove(struct cache_index *index, struct cache_entry *entry)
{
	size_t at = (size_t)(entry - index->entry);

	assert(at < index->count);
	index->present -= cache_entry_present(entry);
	if (entry->pieces > WORD_PIECES) {
		index->bits_bytes -= words(entry->pieces) * sizeof(uint64_t);
		free(entry->bits.more);
	}
	memmove(entry, entry + 1, (index->count - at - 1) * sizeof(*entry));
	index->count--;
}

unsigned cache_entry_get(const struct cache_entry *entry, uint64_t piece)
{
	assert(piece < entry->pieces);
	return bits_of(entry)[piece / WORD_PIECES] >> 2 * (piece % WORD_PIECES) & 3;
}

void cache_entry_set(
	struct cache_index *index, struct cache_entry *entry, uint64_t piece, unsigned state)
{
	unsigned shift = 2 * (piece % WORD_PIECES), before = cache_entry_get(entry, piece);
	uint64_t *word = &bits_of(entry)[piece / WORD_PIECES];

	assert(state <= CACHE_PIECE_VERIFIED);
	*word = (*word & ~(UINT64_C(3) << shift)) | (uint64_t)state << shift;
	index->present += state != 0;
	index->present -= before != 0;
}

uint64_t cache_entry_present(const struct cache_entry *entry)
{
	const uint64_t *bits = bits_of(entry);
	uint64_t n = 0;

	for (size_t i = 0; i < words(entry->pieces); i++)
		n += (uint64_t)__builtin_popcountll(
			(bits[i] | bits[i] >> 1) & UINT64_C(0x5555555555555555));
	return n;
}

uint64_t cache_entry_piece_blocks(const struct cache_entry *entry, uint64_t piece)
{
	return piece + 1 == entry->pieces ? (uint64_t)entry->last_blocks * CACHE_BLOCK
					  : UINT64_C(1) << entry->piece_log2;
}

uint64_t cache_entry_blocks(const struct cache_entry *entry)
{
	uint64_t blocks = cache_blocks(cache_sums_bytes(entry->pieces));

	blocks += cache_entry_present(entry) << entry->piece_log2;
	if (cache_entry_get(entry, entry->pieces - 1))
		blocks -= (UINT64_C(1) << entry->piece_log2) -
			  cache_entry_piece_blocks(entry, entry->pieces - 1);
	return blocks;
}

/* The first present piece from @from on, around the end. */
static bool next_present(const struct cache_entry *entry, uint64_t from, uint64_t *piece)
{
	for (uint64_t i = 0; i < entry->pieces; i++) {
		*piece = (from + i) % entry->pieces;
		if (cache_entry_get(entry, *piece))
			return true;
	}
	return false;
}

struct cache_entry *cache_index_draw(struct cache_index *index, uint64_t (*random)(void *context),
	void *context, uint64_t *piece)
{
	struct cache_entry *entry;

	if (index->present == 0)
		return NULL;
	/* Objects with few pieces are drawn as seldom as they deserve, unless that takes long. */
	for (int tries = 0; tries < 256; tries++) {
		entry = &index->entry[random(context) % index->count];
		*piece = random(context) % index->largest;
		if (*piece < entry->pieces && cache_entry_get(entry, *piece))
			return entry;
	}
	for (size_t from = random(context) % index->count, i = 0; i < index->count; i++) {
		entry = &index->entry[(from + i) % index->count];
		if (next_present(entry, random(context) % entry->pieces, piece))
			return entry;
	}
	return NULL;
}
