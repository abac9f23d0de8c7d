/* Files of the cache: their names, headers and sums, and the directory itself. Private to it. */
#ifndef TOKEND_STORE_CACHE_FILES_H
#define TOKEND_STORE_CACHE_FILES_H

#include "daemon/store/store.h"
#include "daemon/store/url.h"

enum {
	CACHE_HASH_BYTES = 16,
	CACHE_HEAD_BYTES = 2048,
	CACHE_BLOCK = 4096, /* of the disk, for counting */
	CACHE_NAME_BYTES = 48,
};

struct cache_hash {
	uint8_t byte[CACHE_HASH_BYTES];
};

/* What the header of a file of sums says. */
struct cache_head {
	uint64_t sum; /* XXH64 of what follows */
	char magic[16];
	uint64_t size;
	uint64_t piece;
	char text[CACHE_HEAD_BYTES - 40]; /* URL, ETag and endpoint, each ending with a zero */
};

_Static_assert(sizeof(struct cache_head) == CACHE_HEAD_BYTES, "the header has a fixed size");

const char *cache_head_url(const struct cache_head *head);
const char *cache_head_etag(const struct cache_head *head);

/* Fills @head, except its sum, and @hash. False: the names do not fit; the object cannot be cached.
 */
bool cache_head_of(const struct url_place *place, const struct object *object,
	struct cache_head *head, struct cache_hash *hash);
/* Whether the header is whole and @hash is its hash. */
bool cache_head_valid(const struct cache_head *head, const struct cache_hash *hash);

static inline uint64_t cache_pieces(uint64_t size, uint64_t piece)
{
	return size / piece + (size % piece > 0);
}

static inline uint64_t cache_piece_bytes(uint64_t size, uint64_t piece, uint64_t number)
{
	uint64_t left = size - number * piece;

	return left < piece ? left : piece;
}

static inline uint64_t cache_blocks(uint64_t bytes)
{
	return (bytes + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK;
}

static inline uint64_t cache_sums_bytes(uint64_t pieces)
{
	return CACHE_HEAD_BYTES + 8 * pieces;
}

/* Writes "ab/HASH.ENDING". */
void cache_name(const struct cache_hash *hash, const char *ending, char name[CACHE_NAME_BYTES]);
/* Reads a name without its directory, "HASH.sums". False: it is none. */
bool cache_name_parse(const char *name, const char *ending, struct cache_hash *hash);

/* Creates both files without any piece; replaces others. Returns the descriptor of the data, or
 * -errno. */
int cache_files_create(int dir, const struct cache_hash *hash, const struct cache_head *head);
void cache_files_remove(int dir, const struct cache_hash *hash);
/* Reads the header. 0 or an errno; EBADMSG: it is none. */
int cache_head_read(int dir, const struct cache_hash *hash, struct cache_head *head);
/* Reads or writes the sum of one piece. 0 or an errno. */
int cache_sum_read(int dir, const struct cache_hash *hash, uint64_t piece, uint64_t *sum);
int cache_sum_write(int dir, const struct cache_hash *hash, uint64_t piece, uint64_t sum);
/* Frees the blocks of a range. 0 or an errno. */
int cache_punch(int fd, uint64_t at, uint64_t n);
/* Reads [at, at + n) of a file and fills *@sum, as stored. 0 or an errno. */
int cache_sum_of(int fd, uint64_t at, uint64_t n, uint64_t *sum);

/* Creates the directory and judges it. Returns its descriptor, or -1 and @fault. */
int cache_dir_open(const char *path, uint64_t size, struct fault *fault);
/* Locks the directory until its descriptor is closed. False: @fault. */
bool cache_dir_lock(int dir, const char *path, struct fault *fault);

#endif
