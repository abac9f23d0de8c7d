#include "client/ctl/offline/pack_format.h"

#include "daemon/shard/bounds.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

const struct pack_format_names pack_formats[PACK_FORMATS] = {
	[PACK_FLAT] = {"flat", {".bin"}, ".bin"},
	[PACK_ZSTD] = {"zstd", {".zst", ".zstd"}, ".bin.zst"},
	[PACK_MEGATRON] = {"megatron", {".bin"}, ".bin"},
};

bool pack_ends(const char *text, const char *ending)
{
	size_t n = strlen(text), m = strlen(ending);

	return n > m && strcmp(text + n - m, ending) == 0;
}

bool pack_side_path(const struct pack_how *how, const char *path, char *side)
{
	const char *ending = how->row_tokens		    ? BOUNDS_ENDING
			     : how->format == PACK_MEGATRON ? ".idx"
							    : NULL;

	if (ending && !bytes_side_path(path, ".bin", ending, side, PATH_MAX))
		assert(!"the command line or the format's ending makes it end in .bin");
	return ending;
}

bool pack_fail(struct fault *fault, const char *path, int error)
{
	return fault_errno(fault, error, "", "%s: %s%s", path, strerror(error),
		error == ENOSPC ? "; free some space and repeat the command, which continues "
				  "after the last complete file"
				: "");
}

bool pack_write(int fd, const void *from, size_t n, uint64_t at)
{
	const char *byte = from;

	while (n > 0) {
		ssize_t put = pwrite(fd, byte, n, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put == 0)
			errno = ENOSPC;
		if (put <= 0)
			return false;
		byte += put;
		at += (uint64_t)put;
		n -= (size_t)put;
	}
	return true;
}
