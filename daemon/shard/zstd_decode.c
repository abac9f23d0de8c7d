#include "daemon/shard/zstd_decode.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A buffer as a source of bytes, for zstd_walk_frame(). */
struct memory {
	struct bytes bytes;
	const uint8_t *data;
};

static bool memory_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	(void)fault;
	memcpy(to, ((const struct memory *)b)->data + at, n);
	return true;
}

static const struct bytes_ops memory_ops = {.read = memory_read};

void zstd_decoder_free(struct zstd_decoder *d)
{
	if (d) {
		ZSTD_freeDCtx(d->zstd);
		free(d->input);
	}
	free(d);
}

struct zstd_decoder *zstd_decoder_new(void)
{
	struct zstd_decoder *d = calloc(1, sizeof(*d));

	if (d)
		d->zstd = ZSTD_createDCtx();
	if (d && !d->zstd) {
		free(d);
		d = NULL;
	}
	return d;
}

bool zstd_decoder_room(struct zstd_decoder *d, size_t bytes)
{
	if (d->room >= bytes)
		return true;
	free(d->input);
	d->input = malloc(bytes);
	d->room = d->input ? bytes : 0;
	return d->input;
}

bool zstd_load_frame(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame,
	struct zstd_header *h, uint64_t *most, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[frame];

	if (!zstd_decoder_room(d, f->length))
		return fault_memory(fault);
	if (!bytes_read(s->file, f->from, d->input, f->length, fault))
		return false;
	const struct memory memory = {{.ops = &memory_ops, .size = f->length}, d->input};
	struct zstd_walk w = {.file = &memory.bytes, .end = f->length, .fault = fault};

	if (!zstd_walk_frame(&w, frame, h, most))
		return false;
	return (w.at == w.end && !h->skippable) ||
	       fault_set(fault, FAULT_DATA, "",
		       "zstd frame %" PRIu64 ": is %" PRIu64
		       " bytes long%s; the seek table says %" PRIu32,
		       frame, w.at, h->skippable ? " and has no contents" : "", f->length);
}

/*
 * Whether the decoder checks the checksum: the frame's own and the seek table's are both the low
 * half of the contents' XXH64, so if they are equal, the decoder's check is enough.
 */
static bool is_checked(
	const struct zstd_decoder *d, const struct zstd_frame *f, const struct zstd_header *h)
{
	return h->has_checksum && f->length >= 4 &&
	       bytes_u32(d->input + f->length - 4) == f->checksum;
}

bool zstd_decode(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame, uint64_t size,
	char **data, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[frame];
	struct zstd_header h;
	uint64_t most;

	if (!zstd_load_frame(d, s, frame, &h, &most, fault))
		return false;
	if (size > most || (h.has_content && h.content != size))
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": the seek table says that it decodes to %" PRIu64
			" bytes; %s %" PRIu64,
			frame, size, h.has_content ? "its header says" : "its blocks hold at most",
			h.has_content ? h.content : most);
	if (!*data && !(*data = malloc(size)))
		return fault_memory(fault);
	size_t got = ZSTD_decompressDCtx(d->zstd, *data, size, d->input, f->length);

	if (ZSTD_isError(got))
		return fault_set(fault, FAULT_DATA, "", "zstd frame %" PRIu64 " is damaged: %s",
			frame, ZSTD_getErrorName(got));
	if (got != size)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 " decodes to %zu bytes; the seek table says %" PRIu64,
			frame, got, size);
	return !s->has_checksums || is_checked(d, f, &h) ||
	       (uint32_t)XXH64(*data, size, 0) == f->checksum ||
	       fault_set(fault, FAULT_DATA, "",
		       "zstd frame %" PRIu64 " is damaged: its checksum is %08" PRIx32
		       "; the seek table says %08" PRIx32,
		       frame, (uint32_t)XXH64(*data, size, 0), f->checksum);
}
