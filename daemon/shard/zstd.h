/* zstd-compressed files as a source of bytes, and the decoder of a frame, for frames.c. */
#ifndef TOKEND_SHARD_ZSTD_H
#define TOKEND_SHARD_ZSTD_H

#include "daemon/shard/bytes.h"

struct frames;

/* Whether the file is compressed, by its first bytes or its name (*.zst, *.zstd). */
bool zstd_recognise(const struct bytes *file);
/*
 * Opens the contents of @file, which it takes over, and closes on failure too. @frames is the cache
 * of decoded frames; NULL: the source has its own, of about one frame. @budget_bytes is the largest
 * decoded size of a frame; 0: 256 MiB.
 *
 * Rejects a wrong seek table, a frame over the budget, and damaged frames of a small file. On
 * failure returns NULL; @fault names field, value and limit, without the path.
 */
struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault);

struct zstd_frame {
	uint64_t from;	/* offset in the file */
	uint64_t begin; /* offset in the contents */
	uint32_t length;
	uint32_t checksum;
};

struct zstd_source {
	struct bytes bytes;
	struct bytes *file;
	struct frames *frames; /* the cache, or a share of it */
	bool own;	       /* the cache is the source's */
	bool has_checksums;
	uint64_t budget;
	uint64_t count;
	struct zstd_frame *frame; /* [count + 1]: the last has the end of the contents */
};

/* Decodes frame number @frame, which must give @size bytes, to @to. False: @fault. */
bool zstd_decode(
	const struct zstd_source *s, uint64_t frame, uint64_t size, char *to, struct fault *fault);

#endif
