#include "client/ctl/offline/pack_format.h"

#include "daemon/shard/bytes.h"

#include <assert.h>
#include <errno.h>
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

void pack_idx_path(const char *path, char *idx, size_t idx_bytes)
{
	if (!bytes_side_path(path, ".bin", ".idx", idx, idx_bytes))
		assert(!"a Megatron file that does not end in .bin");
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
