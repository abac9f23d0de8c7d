#include "client/ctl/offline/pack_zstd.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FOOTER_BYTES = 9, FRAMES_MOST = 0x8000000 };

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

/* Uses the level's parameters for large files. Those for files as small as a frame take longer, and
 * save too little space. */
static bool set_up(ZSTD_CCtx *zstd, const struct pack_how *how)
{
	ZSTD_compressionParameters c = ZSTD_getCParams(how->level, 0, 0);
	const struct {
		ZSTD_cParameter name;
		int value;
	} set[] = {
		{ZSTD_c_compressionLevel, how->level},
		{ZSTD_c_checksumFlag, 1},
		{ZSTD_c_hashLog, (int)c.hashLog},
		{ZSTD_c_chainLog, (int)c.chainLog},
		{ZSTD_c_searchLog, (int)c.searchLog},
		{ZSTD_c_minMatch, (int)c.minMatch},
		{ZSTD_c_targetLength, (int)c.targetLength},
		{ZSTD_c_strategy, (int)c.strategy},
	};

	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
		if (ZSTD_isError(ZSTD_CCtx_setParameter(zstd, set[i].name, set[i].value)))
			return false;
	return true;
}

bool pack_compressor_begin(
	struct pack_compressor *c, const struct pack_how *how, uint64_t piece_bytes)
{
	uint64_t frames = piece_bytes / how->frame_bytes + 1;

	c->room = frames * ZSTD_compressBound(how->frame_bytes);
	c->packed = malloc(c->room);
	c->entries = malloc(frames * PACK_ENTRY_BYTES);
	c->zstd = ZSTD_createCCtx();
	return c->packed && c->entries && c->zstd && set_up(c->zstd, how);
}

void pack_compressor_end(struct pack_compressor *c)
{
	ZSTD_freeCCtx(c->zstd);
	free(c->packed);
	free(c->entries);
}

bool pack_compress(struct pack_compressor *c, const struct pack_how *how, const void *from,
	uint64_t n, size_t *bytes, uint64_t *frames, struct fault *fault)
{
	const char *at = from;

	*bytes = 0;
	*frames = 0;
	while (n > 0) {
		size_t some = n < how->frame_bytes ? n : how->frame_bytes;
		size_t got =
			ZSTD_compress2(c->zstd, c->packed + *bytes, c->room - *bytes, at, some);
		uint8_t *entry = c->entries + *frames * PACK_ENTRY_BYTES;

		if (ZSTD_isError(got))
			return fault_set(fault, FAULT_DATA, "", "zstd: %s", ZSTD_getErrorName(got));
		put32(entry, (uint32_t)got);
		put32(entry + 4, (uint32_t)some);
		put32(entry + 8, (uint32_t)XXH64(at, some, 0));
		*bytes += got;
		++*frames;
		at += some;
		n -= some;
	}
	return true;
}

bool pack_frames_add(
	struct pack_frames *f, const uint8_t *entries, uint64_t frames, struct fault *fault)
{
	if (f->frames + frames > f->room) {
		uint64_t room = 2 * f->room + frames + 1024;
		uint8_t *table = realloc(f->table, room * PACK_ENTRY_BYTES);

		if (!table)
			return fault_memory(fault);
		f->table = table;
		f->room = room;
	}
	memcpy(f->table + f->frames * PACK_ENTRY_BYTES, entries, frames * PACK_ENTRY_BYTES);
	f->frames += frames;
	return true;
}

/* The table is a skippable frame of its own. */
bool pack_frames_write(
	const struct pack_frames *f, int fd, const char *path, uint64_t *at, struct fault *fault)
{
	uint8_t head[8], foot[FOOTER_BYTES];
	uint64_t bytes = f->frames * PACK_ENTRY_BYTES;

	if (bytes + FOOTER_BYTES > UINT32_MAX || f->frames > FRAMES_MOST)
		return fault_set(fault, FAULT_ARGUMENT, "frame",
			"%s: %" PRIu64
			" frames do not fit into a seek table (at most %d); give a larger --frame, "
			"or more --shards",
			path, f->frames, FRAMES_MOST);
	put32(head, 0x184d2a5e);
	put32(head + 4, (uint32_t)(bytes + FOOTER_BYTES));
	put32(foot, (uint32_t)f->frames);
	foot[4] = 0x80; /* there are checksums */
	put32(foot + 5, 0x8f92eab1);
	if (!pack_write(fd, head, sizeof(head), *at) ||
		!pack_write(fd, f->table, bytes, *at + sizeof(head)) ||
		!pack_write(fd, foot, sizeof(foot), *at + sizeof(head) + bytes))
		return pack_fail(fault, path, errno);
	*at += sizeof(head) + bytes + sizeof(foot);
	return true;
}
