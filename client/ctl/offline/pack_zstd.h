/* A seekable zstd file: frames, and a table of them at its end. */
#ifndef TOKEND_CTL_PACK_ZSTD_H
#define TOKEND_CTL_PACK_ZSTD_H

#include "client/ctl/offline/pack_format.h"

#include <stddef.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum { PACK_ENTRY_BYTES = 12 }; /* of the seek table */

/* The seek table, as it will be in the file. */
struct pack_frames {
	uint8_t *table;
	uint64_t frames, room;
};

/* What one thread compresses with. */
struct pack_compressor {
	ZSTD_CCtx *zstd;
	uint8_t *packed; /* frames */
	size_t room;
	uint8_t *entries; /* theirs */
};

/* For pieces of @piece_bytes. False: out of memory. pack_compressor_end() is the caller's either
 * way. */
bool pack_compressor_begin(
	struct pack_compressor *c, const struct pack_how *how, uint64_t piece_bytes);
void pack_compressor_end(struct pack_compressor *c);
/* Compresses @n bytes into c->packed and c->entries: *@bytes and *@frames of them. The fault does
 * not name the file. */
bool pack_compress(struct pack_compressor *c, const struct pack_how *how, const void *from,
	uint64_t n, size_t *bytes, uint64_t *frames, struct fault *fault);

bool pack_frames_add(
	struct pack_frames *f, const uint8_t *entries, uint64_t frames, struct fault *fault);
/* Writes the table to @fd, which is @path, at *@at, and moves *@at past it. */
bool pack_frames_write(
	const struct pack_frames *f, int fd, const char *path, uint64_t *at, struct fault *fault);

#endif
