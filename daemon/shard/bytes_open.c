#include "daemon/shard/bytes_open.h"

#include "daemon/shard/zstd.h"

static const struct compression {
	bool (*recognise)(const struct bytes *file);
	struct bytes *(*open)(struct bytes *file, struct frames *frames, uint64_t budget_bytes,
		struct fault *fault);
} compressions[] = {
	{zstd_recognise, zstd_open},
};

struct bytes *bytes_open(
	int fd, const char *path, struct frames *frames, uint64_t budget_bytes, struct fault *fault)
{
	struct bytes *file = bytes_open_plain(fd, path, fault);

	for (unsigned i = 0; file && i < sizeof(compressions) / sizeof(compressions[0]); i++)
		if (compressions[i].recognise(file))
			return compressions[i].open(file, frames, budget_bytes, fault);
	return file;
}
