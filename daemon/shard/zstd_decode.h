/*
 * A compressed file with the places of its frames, and how one frame is decoded.
 */
#ifndef TOKEND_SHARD_ZSTD_DECODE_H
#define TOKEND_SHARD_ZSTD_DECODE_H

#include "daemon/shard/frames.h"
#include "daemon/shard/zstd_frame.h"

#include <zstd.h>

struct zstd_frame {
	uint64_t from;	/* in the file */
	uint64_t begin; /* of what is decoded */
	uint32_t length;
	uint32_t checksum;
};

/* Distinguishes a file from all others, and from itself after it was rewritten. */
struct zstd_identity {
	uint64_t device, inode, mtime_ns, bytes, ctime_ns;
};

struct zstd_source {
	struct bytes bytes;
	struct bytes *file;
	struct frames *frames; /* the cache */
	struct frames *share;  /* of it, or itself */
	struct frames *own;    /* NULL: it is others' */
	struct zstd_identity identity;
	bool has_checksums;
	uint64_t budget;
	uint64_t count, room;
	struct zstd_frame *frame; /* [count + 1]: the last is where all ends */
};

struct zstd_decoder {
	struct zstd_decoder *next;
	ZSTD_DCtx *zstd;
	uint8_t *input;
	size_t room;
	uint64_t counted; /* what the cache thinks that it holds */
};

struct zstd_decoder *zstd_decoder_new(void); /* NULL: out of memory */
void zstd_decoder_free(struct zstd_decoder *d);
/* Makes room for @bytes of input. False: out of memory. */
bool zstd_decoder_room(struct zstd_decoder *d, size_t bytes);
/*
 * Reads frame @frame into the decoder's input, and checks that it is one frame. Fills @h, and
 * *@most with what its blocks can decode to.
 */
bool zstd_load_frame(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame,
	struct zstd_header *h, uint64_t *most, struct fault *fault);
/* Decodes frame @frame to @size bytes, into *@data or, where that is NULL, memory that it
 * allocates. */
bool zstd_decode(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame, uint64_t size,
	char **data, struct fault *fault);

#endif
