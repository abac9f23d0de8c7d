/*
 * Flat shards: tokens from the first byte to the last, nothing else (nanoGPT's .bin, OLMo-core's .npy). The
 * file says nothing of itself, so its width is the config's word, and all that can be checked is that the
 * size agrees with it.
 */
#include "shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool flat_recognise(const char *path, int fd, const struct stat *st)
{
	const char *dot = strrchr(path, '.');

	(void)fd;
	return S_ISREG(st->st_mode) && dot && (strcmp(dot, ".bin") == 0 || strcmp(dot, ".npy") == 0);
}

static bool flat_describe(const char *path, int fd, const struct stat *st, const struct shard_hint *hint,
	struct shard *shard, char *why, size_t why_bytes)
{
	uint64_t size = (uint64_t)st->st_size;

	(void)path, (void)fd;
	if (size % hint->token_bytes != 0) {
		snprintf(why, why_bytes,
			"its size, %" PRIu64 " bytes, is no multiple of %" PRIu32 " (a token of u%" PRIu32
			"): it is cut short, or `dtype` is wrong",
			size, hint->token_bytes, 8 * hint->token_bytes);
		return false;
	}
	*shard = (struct shard){
		.tokens = size / hint->token_bytes,
		.documents = SHARD_UNKNOWN,
		.token_bytes = hint->token_bytes,
	};
	return true;
}

const struct shard_format shard_flat = {"flat", flat_recognise, flat_describe};
