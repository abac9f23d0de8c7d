/*
 * The shape of a zstd frame: its header, and a walk from block to block to its end. Nothing is
 * decoded.
 *
 * A frame's claims are not trusted: its blocks must be able to hold what it says it decodes to.
 */
#ifndef TOKEND_SHARD_ZSTD_FRAME_H
#define TOKEND_SHARD_ZSTD_FRAME_H

#include "daemon/shard/bytes.h"

enum {
	ZSTD_BLOCK_MOST = 128 * 1024, /* what a block decodes to at most, by zstd's format */
	ZSTD_HEADER_MOST = 18,
	ZSTD_SKIPPABLE_BYTES = 8, /* magic and length */
	ZSTD_PEEK_BYTES = 4096,
};

static const uint32_t zstd_frame_magic = 0xfd2fb528, zstd_skippable_magic = 0x184d2a50;

struct zstd_header {
	uint64_t bytes;	  /* of itself */
	bool skippable;	  /* then bytes is all of the frame */
	bool has_content; /* it says what it decodes to: */
	uint64_t content;
	uint64_t block_most;
	uint64_t least; /* what its blocks decode to at least, once they were walked through */
	bool has_checksum;
};

/* Parses the @n bytes at @p; there are ZSTD_HEADER_MOST of them unless the file ends sooner. False:
 * no frame begins so. */
bool zstd_parse_header(const uint8_t *p, size_t n, struct zstd_header *h);

/* A walk through @file, a few bytes of it at hand. */
struct zstd_walk {
	const struct bytes *file;
	uint64_t at, end;
	uint64_t peek_at;
	size_t peeked;
	uint8_t peek[ZSTD_PEEK_BYTES];
	struct fault *fault;
};

/* Walks over the frame at w->at. Fills @h, and *@most with what its blocks can decode to. */
bool zstd_walk_frame(struct zstd_walk *w, uint64_t frame, struct zstd_header *h, uint64_t *most);
/* A frame whose header is @n bytes at @p. True: it needs a dictionary, which is not supported;
 * @fault says so. */
bool zstd_needs_dictionary(const uint8_t *p, size_t n, uint64_t frame, struct fault *fault);

#endif
