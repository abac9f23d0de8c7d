/*
 * When a shard is opened it is compared with the one that was listed. Some shards stay open,
 * because windows come in any order.
 */
#include "client/ctl/offline/windows.h"
#include "client/ctl/common/error.h"
#include "daemon/catalog/dataset_shard.h"
#include "daemon/shard/frames.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_FILES = 64 };

struct file {
	const struct dataset *dataset; /* NULL: the entry is free */
	uint64_t shard;
	int fd;
	struct shard *source;
};

struct ctl_windows {
	const struct cursor *cursor; /* its datasets are those of the places */
	const struct dataset **map;  /* [cursor->datasets] */
	struct frames *frames;	     /* decoded frames of all files */
	struct file file[OPEN_FILES];
};

struct ctl_windows *ctl_windows_open(const struct ctl_stream *s, const struct ctl_history *h)
{
	struct ctl_windows *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return NULL;
	reader->cursor = h->widest;
	reader->map = calloc(h->widest->datasets, sizeof(const struct dataset *));
	reader->frames = frames_new(dataset_frames_budget(s->config));
	if (!reader->map || !reader->frames) {
		ctl_windows_close(reader);
		return NULL;
	}
	stream_map(s->stream, h->widest, reader->map);
	return reader;
}

/* Opens @fd as a shard, which must be the one that was listed. NULL after an error was printed. */
static struct shard *open_source(const struct ctl_windows *reader, const struct dataset *dataset,
	uint64_t shard, int fd, const char *path)
{
	struct fault fault;
	struct stat st;
	struct shard *source = NULL;

	if (fstat(fd, &st) != 0)
		fault_errno(&fault, errno, "", "%s", strerror(errno));
	else if (dataset_same_shard(dataset, shard, &st, &fault))
		source = dataset_open_shard(dataset, shard, path, fd, reader->frames, &fault);
	if (!source)
		ctl_fail("%s: %s", path, fault.text);
	return source;
}

static void close_file(struct file *file)
{
	if (!file->dataset)
		return;
	shard_close(file->source);
	close(file->fd);
	file->dataset = NULL;
}

/* The open shard. NULL after an error was printed. */
static const struct shard *open_shard(struct ctl_windows *reader, uint32_t d, uint64_t shard)
{
	const struct dataset *dataset = reader->map[d];
	struct file *file = &reader->file[(shard + d) % OPEN_FILES];
	char path[PATH_MAX + 1];

	if (file->dataset == dataset && file->shard == shard)
		return file->source;
	dataset_shard_path(dataset, shard, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		ctl_fail("%s: %s", path, strerror(errno));
		return NULL;
	}
	struct shard *source = open_source(reader, dataset, shard, fd, path);

	if (!source) {
		close(fd);
		return NULL;
	}
	close_file(file);
	*file = (struct file){dataset, shard, fd, source};
	return source;
}

bool ctl_windows_read(struct ctl_windows *reader, const struct order_place *place, void *tokens)
{
	uint32_t d = place->dataset;
	const struct dataset *dataset = reader->map[d];
	uint64_t shard, offset;
	struct fault fault;

	if (!dataset) {
		ctl_fail("dataset %s: no longer in the config, so its tokens cannot be read",
			reader->cursor->dataset[d].name);
		return false;
	}
	table_locate(&dataset->table, &reader->cursor->order[d], reader->cursor->seed, place->epoch,
		place->window, &shard, &offset);
	const struct shard *source = open_shard(reader, d, shard);

	if (!source)
		return false;
	if (shard_read(source, offset, dataset->table.window_tokens, tokens, &fault))
		return true;
	ctl_fail("dataset %s: shard %s at token %" PRIu64 ": %s", dataset->config->name,
		dataset_shard_name(dataset, shard), offset, fault.text);
	return false;
}

void ctl_windows_close(struct ctl_windows *reader)
{
	if (!reader)
		return;
	for (unsigned i = 0; i < OPEN_FILES; i++)
		close_file(&reader->file[i]);
	if (reader->frames)
		frames_free(reader->frames);
	free(reader->map);
	free(reader);
}
