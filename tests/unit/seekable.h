/* Writes zstd files with a seek table. */
#ifndef TESTS_SEEKABLE_H
#define TESTS_SEEKABLE_H

#include "tests/unit/files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

struct frame {
	uint32_t length, size, checksum;
};

struct file {
	struct piece data; /* frames, then the table */
	struct frame frame[600];
	size_t frames;
};

/* Compresses @n bytes to a frame, with or without its size, as stream compressors write. */
static inline void add_frame(struct file *f, const uint8_t *bytes, size_t n, bool sized)
{
	size_t room = sizeof(f->data.at) - f->data.n, begin = f->data.n;
	ZSTD_CCtx *c = ZSTD_createCCtx();

	ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, sized);
	size_t length = ZSTD_compress2(c, f->data.at + begin, room, bytes, n);

	assert_false(ZSTD_isError(length));
	ZSTD_freeCCtx(c);
	f->data.n += length;
	f->frame[f->frames++] =
		(struct frame){(uint32_t)length, (uint32_t)n, (uint32_t)XXH64(bytes, n, 0)};
}

static inline void add_table(struct file *f, bool checksums)
{
	uint32_t entry = checksums ? 12 : 8;

	piece_number(&f->data, 0x184d2a5e, 4);
	piece_number(&f->data, f->frames * entry + 9, 4);
	for (size_t i = 0; i < f->frames; i++) {
		piece_number(&f->data, f->frame[i].length, 4);
		piece_number(&f->data, f->frame[i].size, 4);
		if (checksums)
			piece_number(&f->data, f->frame[i].checksum, 4);
	}
	piece_number(&f->data, f->frames, 4);
	piece_number(&f->data, checksums ? 0x80 : 0, 1);
	piece_number(&f->data, 0x8f92eab1, 4);
}

#endif
