/*
 * Flat shards: tokens from the first byte to the last, nothing else (nanoGPT's .bin, OLMo-core's
 * .npy). The file says nothing of itself, so its width is the config's word, and all that can be
 * checked is that the size agrees with it.
 */
#include "daemon/shard/bounds.h"
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <string.h>

/* Compressed, a name need say no more than that: shard.zst, shard.00001.zst. */
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

static bool flat_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	uint32_t width = shard_type_bytes(hint->type);

	if (b->size % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			"its size, %" PRIu64 " bytes, is no multiple of %" PRIu32
			" (a token of %s): it is cut short, or `dtype` is wrong",
			b->size, width, shard_type_name(hint->type));
	facts->type = hint->type;
	facts->tokens = b->size / width;
	return true;
}

/* What bounds.c reads, for whatever has such a name. */
static const struct shard_companion flat_companions[] = {
	{.ending = BOUNDS_ENDING, .shard = ".npy", .kind = "a list of document bounds"},
	{.ending = BOUNDS_ENDING, .shard = ".bin", .kind = "a list of document bounds"},
	{0},
};

const struct shard_format shard_flat = {
	.name = "flat",
	.recognise = flat_recognise,
	.describe = flat_describe,
	.companions = flat_companions,
};
