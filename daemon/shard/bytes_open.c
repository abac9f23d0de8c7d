#include "daemon/shard/bytes_open.h"

#include "daemon/shard/bytes_object.h"
#include "daemon/shard/zstd.h"

static const struct compression {
	bool (*recognise)(const struct bytes *file);
	struct bytes *(*open)(struct bytes *file, struct frames *frames, uint64_t budget_bytes,
		struct fault *fault);
} compressions[] = {
	{zstd_recognise, zstd_open},
};

static struct bytes *open_object(
	const struct objects *objects, const char *path, struct fault *fault)
{
	struct ahead *ahead = ahead_new();
	struct bytes *b = NULL;

	if (!ahead)
		fault_memory(fault);
	else if (bytes_object_open(objects, path, ahead, &b, fault) && !b)
		fault_set(fault, FAULT_DATA, "", "is not among the listed objects");
	ahead_free(ahead); /* the source has its share */
	return b;
}

struct bytes *bytes_open_raw(
	int fd, const char *path, const struct objects *objects, struct fault *fault)
{
	return objects ? open_object(objects, path, fault) : bytes_open_plain(fd, path, fault);
}

struct bytes *bytes_open(int fd, const char *path, const struct objects *objects,
	struct frames *frames, uint64_t budget_bytes, struct fault *fault)
{
	struct bytes *file = bytes_open_raw(fd, path, objects, fault);

	for (unsigned i = 0; file && i < sizeof(compressions) / sizeof(compressions[0]); i++)
		if (compressions[i].recognise(file))
			return compressions[i].open(file, frames, budget_bytes, fault);
	return file;
}
