/*
 * Flat shards: tokens from the first byte to the last, without a header (nanoGPT's .bin,
 * OLMo-core's .npy). The config gives the width of a token. The only check is that the size is a
 * multiple of it.
 */
#include "daemon/shard/bounds.h"
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <string.h>

/* Compressed files need no .bin in their names: shard.zst, shard.00001.zst. */
static bool is_bare(const char *path)
{
	const char *end = bytes_ending(path, ".zst"), *at = strrchr(path, '/');

	if (!end)
		end = bytes_ending(path, ".zstd");
	at = end ? memchr(at ? at + 1 : path, '.', (size_t)(end - (at ? at + 1 : path))) : NULL;
	return end && (!at || at + 1 + strspn(at + 1, "0123456789") == end);
}

static bool flat_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".bin") || bytes_ending(b->path, ".npy") ||
	       (!b->plain && is_bare(b->path));
}

static bool flat_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	uint32_t width = shard_type_bytes(hint->type);

	(void)index, (void)map;
	if (b->size % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " bytes is not a multiple of %" PRIu32 " (dtype %s); %s",
			b->size, width, shard_type_name(hint->type),
			b->size % 2 == 0 ? "set dtype: u16?"
					 : "the file is truncated: write it again");
	facts->type = hint->type;
	facts->tokens = b->size / width;
	return true;
}

/* bounds.c reads them for every format without documents. */
static const struct shard_companion flat_companions[] = {
	{.ending = BOUNDS_ENDING, .shard = ".npy", .kind = "a list of document bounds"},
	{.ending = BOUNDS_ENDING, .shard = ".bin", .kind = "a list of document bounds"},
	{0},
};

const struct shard_format shard_flat = {
	.name = "flat",
	.recognise = flat_recognise,
	.raw = true,
	.scan = flat_scan,
	.companions = flat_companions,
};
