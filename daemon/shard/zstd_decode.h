/* A compressed file with the index of its frames, and the decoder of a frame. */
#ifndef TOKEND_SHARD_ZSTD_DECODE_H
#define TOKEND_SHARD_ZSTD_DECODE_H

#include "daemon/shard/frames.h"
#include "daemon/shard/zstd_frame.h"

#include <zstd.h>

enum { ZSTD_KEPT_MOST = 7 };

struct zstd_frame {
	uint64_t from;	/* offset in the file */
	uint64_t begin; /* offset in the contents */
	uint32_t length;
	uint32_t checksum;
	/*
	 * The frame's first bytes, kept once it was decoded: a window that ends with the first
	 * token of a frame need not decode it again. Under the cache's lock.
	 */
	uint8_t kept, head[ZSTD_KEPT_MOST];
};

/* Identifies the contents of a file: it changes when the file is rewritten. */
struct zstd_identity {
	uint64_t device, inode, mtime_ns, bytes, ctime_ns;
};

struct zstd_source {
	struct bytes bytes;
	struct bytes *file;
	struct frames *frames; /* the cache */
	struct frames *share;  /* of the cache, or the cache itself */
	struct frames *own;    /* a cache that the source owns, or NULL */
	struct zstd_identity identity;
	bool has_checksums;
	uint64_t budget;
	uint64_t count, room;
	struct zstd_frame *frame; /* [count + 1]: the last has the end of the contents */
};

struct zstd_decoder {
	struct zstd_decoder *next;
	ZSTD_DCtx *zstd;
	uint8_t *input;
	size_t room;
	uint64_t counted; /* memory that the cache has counted for it */
};

struct zstd_decoder *zstd_decoder_new(void); /* NULL: out of memory */
void zstd_decoder_free(struct zstd_decoder *d);
/* Makes room for @bytes of input. False: out of memory. */
bool zstd_decoder_room(struct zstd_decoder *d, size_t bytes);
/*
 * Reads frame number @frame into the decoder's input, and checks that it is exactly one frame.
 * Fills @h; *@most is the largest size that its blocks can decode to. False: @fault.
 */
bool zstd_load_frame(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame,
	struct zstd_header *h, uint64_t *most, struct fault *fault);
/*
 * Decodes frame number @frame, which must give @size bytes, into *@data; allocates it if it is
 * NULL. False: @fault.
 */
bool zstd_decode(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame, uint64_t size,
	char **data, struct fault *fault);

#endif
