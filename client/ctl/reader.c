/*
 * Tokens of windows, straight from the shards. A file is checked once, when it is opened: it must still be
 * the one that was listed. A few stay open, for windows come in any order.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_FILES = 64 };

struct file {
	const struct dataset *dataset; /* NULL: the place is free */
	uint64_t shard;
	int fd;
};

struct ctl_reader {
	const struct cursor *cursor; /* whose datasets the places mean */
	const struct dataset **map;  /* [cursor->datasets] */
	struct file file[OPEN_FILES];
};

struct ctl_reader *ctl_reader_open(const struct ctl_stream *s, const struct ctl_history *h)
{
	struct ctl_reader *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return NULL;
	reader->cursor = h->widest;
	reader->map = calloc(h->widest->datasets, sizeof(const struct dataset *));
	if (!reader->map) {
		free(reader);
		return NULL;
	}
	stream_map(s->stream, h->widest, reader->map);
	return reader;
}

static bool same_shard(const struct dataset *dataset, uint64_t shard, int fd, const char *path)
{
	char why[256];
	struct stat st;

	if (fstat(fd, &st) != 0)
		ctl_fail("%s: %s", path, strerror(errno));
	else if (!dataset_same_shard(dataset, shard, &st, why, sizeof(why)))
		ctl_fail("%s: %s", path, why);
	else
		return true;
	return false;
}

/* A descriptor of the shard, or -1 after an error was printed. */
static int open_shard(struct ctl_reader *reader, uint32_t d, uint64_t shard)
{
	const struct dataset *dataset = reader->map[d];
	struct file *file = &reader->file[(shard + d) % OPEN_FILES];
	char path[PATH_MAX + 1];

	if (file->dataset == dataset && file->shard == shard)
		return file->fd;
	dataset_shard_path(dataset, shard, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		ctl_fail("%s: %s", path, strerror(errno));
		return -1;
	}
	if (!same_shard(dataset, shard, fd, path)) {
		close(fd);
		return -1;
	}
	if (file->dataset)
		close(file->fd);
	*file = (struct file){dataset, shard, fd};
	return fd;
}

/* Bytes read, fewer than @n only at the end of the file or, with errno, at a fault. */
static size_t read_at(int fd, char *to, size_t n, uint64_t at)
{
	size_t have = 0;

	errno = 0;
	while (have < n) {
		ssize_t got = pread(fd, to + have, n - have, (off_t)(at + have));

		if (got < 0 && errno == EINTR) {
			errno = 0;
			continue;
		}
		if (got <= 0)
			break;
		have += (size_t)got;
	}
	return have;
}

bool ctl_reader_read(struct ctl_reader *reader, const struct order_place *place, void *tokens)
{
	uint32_t d = place->dataset;
	const struct dataset *dataset = reader->map[d];
	uint64_t shard, offset;

	if (!dataset) {
		ctl_fail("dataset %s: is not in the config any more, its tokens cannot be read",
			reader->cursor->dataset[d].name);
		return false;
	}
	table_locate(&dataset->table, &reader->cursor->order[d], reader->cursor->seed, place->epoch,
		place->window, &shard, &offset);
	size_t bytes = dataset->table.window_tokens * dataset->token_bytes;
	int fd = open_shard(reader, d, shard);

	if (fd < 0)
		return false;
	size_t got = read_at(fd, tokens, bytes, dataset->data_at + offset * dataset->token_bytes);

	if (got == bytes)
		return true;
	ctl_fail("dataset %s: shard %s at token %" PRIu64 ": %s", dataset->config->name,
		dataset_shard_name(dataset, shard), offset + got / dataset->token_bytes,
		errno ? strerror(errno) : "the file ends before that, it was truncated");
	return false;
}

void ctl_reader_close(struct ctl_reader *reader)
{
	if (!reader)
		return;
	for (unsigned i = 0; i < OPEN_FILES; i++)
		if (reader->file[i].dataset)
			close(reader->file[i].fd);
	free(reader->map);
	free(reader);
}
