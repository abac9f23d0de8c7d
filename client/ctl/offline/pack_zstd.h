/* Writes a seekable zstd file: frames, then a table of them. */
#ifndef TOKEND_CTL_PACK_ZSTD_H
#define TOKEND_CTL_PACK_ZSTD_H

#include "client/ctl/offline/pack_format.h"

#include <stddef.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum { PACK_ENTRY_BYTES = 12 }; /* of the seek table */

/* The seek table in its format on disk. */
struct pack_frames {
	uint8_t *table;
	uint64_t frames, room;
};

/* The state of one compressing thread. */
struct pack_compressor {
	ZSTD_CCtx *zstd;
	uint8_t *packed;  /* the frames */
	size_t room;	  /* bytes at packed */
	uint8_t *entries; /* the frames' entries of the seek table */
};

/* Prepares for pieces of @piece_bytes. False: out of memory. Call pack_compressor_end() either way.
 */
bool pack_compressor_begin(
	struct pack_compressor *c, const struct pack_how *how, uint64_t piece_bytes);
void pack_compressor_end(struct pack_compressor *c);
/* Compresses @n bytes into *@frames frames, of *@bytes in all, in c->packed and c->entries. The
 * fault does not name the file. */
bool pack_compress(struct pack_compressor *c, const struct pack_how *how, const void *from,
	uint64_t n, size_t *bytes, uint64_t *frames, struct fault *fault);

/* Appends entries to the table. */
bool pack_frames_add(
	struct pack_frames *f, const uint8_t *entries, uint64_t frames, struct fault *fault);
/* Writes the table to @fd, the file @path, at *@at, and adds its size to *@at. */
bool pack_frames_write(
	const struct pack_frames *f, int fd, const char *path, uint64_t *at, struct fault *fault);

#endif
