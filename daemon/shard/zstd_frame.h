/*
 * Parses a zstd frame's header and walks over its blocks, without decoding them.
 *
 * A frame's stated size is not trusted: its blocks must be able to hold it.
 */
#ifndef TOKEND_SHARD_ZSTD_FRAME_H
#define TOKEND_SHARD_ZSTD_FRAME_H

#include "daemon/shard/bytes.h"

enum {
	ZSTD_BLOCK_MOST = 128 * 1024, /* largest decoded size of a block, by zstd's format */
	ZSTD_HEADER_MOST = 18,
	ZSTD_SKIPPABLE_BYTES = 8, /* magic and length */
	ZSTD_PEEK_BYTES = 4096,
};

static const uint32_t zstd_frame_magic = 0xfd2fb528, zstd_skippable_magic = 0x184d2a50;

struct zstd_header {
	uint64_t bytes;	  /* length of the header */
	bool skippable;	  /* bytes is then the length of the frame */
	bool has_content; /* it states the decoded size: */
	uint64_t content;
	uint64_t block_most;
	uint64_t least; /* least decoded size of its blocks, after zstd_walk_frame() */
	bool has_checksum;
};

/*
 * Parses the @n bytes at @p: ZSTD_HEADER_MOST, or fewer at the end of the file. False: not the
 * header of a frame.
 */
bool zstd_parse_header(const uint8_t *p, size_t n, struct zstd_header *h);

/* A walk through @file with a small read buffer. */
struct zstd_walk {
	const struct bytes *file;
	uint64_t at, end;
	uint64_t peek_at;
	size_t peeked;
	uint8_t peek[ZSTD_PEEK_BYTES];
	struct fault *fault;
};

/*
 * Moves w->at past the frame there, which is number @frame. Fills @h; *@most is the largest size
 * that its blocks can decode to. False: w->fault.
 */
bool zstd_walk_frame(struct zstd_walk *w, uint64_t frame, struct zstd_header *h, uint64_t *most);
/*
 * Whether the frame with the header at @p (@n bytes) needs a dictionary, which is not supported:
 * true and @fault.
 */
bool zstd_needs_dictionary(const uint8_t *p, size_t n, uint64_t frame, struct fault *fault);

#endif
