/*
 * Flat shards: tokens from the first byte to the last, without a header (nanoGPT's .bin,
 * OLMo-core's .npy). The config gives the width of a token. The only check is that the size is a
 * multiple of it.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>

static bool flat_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".npy");
}

static bool flat_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	uint32_t width = shard_type_bytes(s->hint->type);

	if (b->size % width != 0)
		return fault_data(s->fault,
			"%" PRIu64 " bytes is not a multiple of %" PRIu32 " (dtype %s); %s",
			b->size, width, shard_type_name(s->hint->type),
			b->size % 2 == 0 ? "set dtype: u16?"
					 : "the file is truncated: write it again");
	s->facts->type = s->hint->type;
	s->facts->tokens = b->size / width;
	return true;
}

const struct shard_format shard_flat = {
	.name = "flat",
	.ending = ".bin",
	.recognise = flat_recognise,
	.raw = true,
	.scan = flat_scan,
};
