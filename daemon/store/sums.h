/*
 * The sums of a manifest, which `tokctl inspect --sums` writes next to it ("web.jsonl" and
 * "web.sums"): XXH64 of each piece of each shard, from the raw bytes of the objects. In piece
 * mode, the daemon compares each piece that it fetches. Little-endian:
 *
 *   "tkdsums1", u32 piece size, u32 0, u64 shards, u64 pieces, u64 digest of the manifest,
 *   u64 checksum (XXH64 of all sums), then a u64 for each piece: of the first shard, of the
 *   second, …, in the order of the manifest's lines
 *
 * Side files have no sums.
 */
#ifndef TOKEND_SUMS_H
#define TOKEND_SUMS_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SUMS_HEAD_BYTES = 48, SUMS_PIECE_LEAST = 64 << 10, SUMS_PIECE_MOST = 64 << 20 };

struct sums_head {
	uint32_t piece; /* bytes: a power of two */
	uint64_t shards, pieces;
	uint64_t manifest; /* sums_manifest() of all lines */
	uint64_t checksum; /* sums_checksum() */
};

/* Writes the path of the sums of the manifest @path, a local path or a URL. False: too long. */
bool sums_path(const char *manifest, char *path, size_t path_bytes);
/* The number of pieces of an object. */
static inline uint64_t sums_pieces(uint64_t size, uint32_t piece)
{
	return size / piece + (size % piece > 0);
}

/* The sum of a piece. */
uint64_t sums_piece(const void *bytes, size_t n);
/*
 * The digest of a manifest's lines: begin with 0, and add the size and the ETag of each line. Sums
 * belong to a manifest with this digest only. @etag: "" if the line has none.
 */
uint64_t sums_manifest(uint64_t digest, uint64_t size, const char *etag);
uint64_t sums_checksum(const uint64_t *sums, uint64_t pieces);

void sums_head_put(const struct sums_head *head, uint8_t bytes[SUMS_HEAD_BYTES]);
/*
 * Reads the head of a file of @file_bytes, of which @bytes are the first SUMS_HEAD_BYTES (or all,
 * if it is shorter), and compares it with that length. False: @fault, FAULT_DATA, without the path.
 */
bool sums_head_get(
	struct sums_head *head, const void *bytes, uint64_t file_bytes, struct fault *fault);
/*
 * Reads the sums of the manifest with @manifest->manifest, shards, pieces and piece from @file,
 * which can be a stream in memory. The caller frees them. NULL: @fault, without the path;
 * FAULT_DATA if they are damaged or of another manifest.
 */
uint64_t *sums_read(FILE *file, const struct sums_head *manifest, struct fault *fault);

#endif
