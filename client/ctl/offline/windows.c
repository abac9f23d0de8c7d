/*
 * The tokens of windows, read from the shards. When a shard is opened it is compared with the one
 * that was listed. Some shards stay open, because windows come in any order.
 */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/shards.h"
#include "client/ctl/offline/stream.h"
#include "daemon/catalog/dataset_shard.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/frames.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_FILES = 64, BLOCK_WINDOWS = 1024, BLOCK_BYTES = 64 << 20 };

struct file {
	const struct dataset *dataset; /* NULL: the entry is free */
	uint64_t shard;
	int fd; /* -1: an object */
	struct shard *source;
	pthread_rwlock_t lock; /* read: while a thread reads the shard */
};

struct ctl_windows {
	const struct dataset *first; /* of the stream */
	struct frames *frames;	     /* decoded frames of all files */
	uint64_t window_bytes;
	bool stores; /* a dataset is in a store */
	struct file file[OPEN_FILES];
};

struct ctl_windows *ctl_windows_open(const struct ctl_stream *s)
{
	struct ctl_windows *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return NULL;
	for (unsigned i = 0; i < OPEN_FILES; i++)
		pthread_rwlock_init(&reader->file[i].lock, NULL);
	reader->first = s->stream->dataset;
	reader->stores = s->stores;
	reader->window_bytes =
		(s->stream->begin.seq_len + s->stream->begin.extra) * s->stream->token_bytes;
	reader->frames = frames_new(dataset_frames_budget(s->config));
	if (reader->frames)
		return reader;
	ctl_windows_close(reader);
	return NULL;
}

static void close_file(struct file *file)
{
	if (!file->dataset)
		return;
	shard_close(file->source);
	if (file->fd >= 0)
		close(file->fd);
	file->source = NULL;
	file->dataset = NULL;
}

/* Opens a shard, which must be the one that was listed. */
static bool open_file(const struct ctl_windows *reader, struct file *file,
	const struct dataset *dataset, uint64_t shard, struct fault *fault)
{
	char path[PATH_MAX + 1];
	struct stat st;

	dataset_shard_path(dataset, shard, path, sizeof(path));
	file->dataset = dataset;
	file->shard = shard;
	file->fd = dataset->objects ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (!dataset->objects && (file->fd < 0 || fstat(file->fd, &st) != 0))
		fault_errno(fault, errno, "", "%s", strerror(errno));
	else if (dataset->objects || dataset_same_shard(dataset, shard, &st, fault))
		file->source =
			dataset_open_shard(dataset, shard, path, file->fd, reader->frames, fault);
	if (file->source)
		return true;
	close_file(file);
	return fault_prefix(fault, "%s: ", path);
}

/* The open shard, which stays until its lock is released. NULL: @fault. */
static struct file *acquire(struct ctl_windows *reader, const struct dataset *dataset,
	uint64_t shard, struct fault *fault)
{
	uint64_t d = (uint64_t)(dataset - reader->first);
	struct file *file = &reader->file[(shard + d) % OPEN_FILES];
	bool fine = true;

	while (fine) {
		pthread_rwlock_rdlock(&file->lock);
		if (file->dataset == dataset && file->shard == shard)
			return file;
		pthread_rwlock_unlock(&file->lock);
		pthread_rwlock_wrlock(&file->lock);
		if (file->dataset != dataset || file->shard != shard) {
			close_file(file);
			fine = open_file(reader, file, dataset, shard, fault);
		}
		pthread_rwlock_unlock(&file->lock);
	}
	return NULL;
}

/* Any thread. */
static bool read_window(
	struct ctl_windows *reader, const struct ctl_window *w, void *tokens, struct fault *fault)
{
	uint32_t d = w->place.dataset;
	const struct dataset *dataset = w->dataset;
	uint64_t shard, offset;

	if (!dataset)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"dataset %s: no longer in the config, so its tokens cannot be read",
			w->cursor->dataset[d].name);
	table_locate(&dataset->table, &w->cursor->order[d], w->cursor->seed, w->place.epoch,
		w->place.window, &shard, &offset);
	struct file *file = acquire(reader, dataset, shard, fault);

	if (!file)
		return false;
	bool fine = shard_read(file->source, offset, dataset->table.window_tokens, tokens, fault);

	pthread_rwlock_unlock(&file->lock);
	return fine || fault_prefix(fault, "dataset %s: shard %s at token %" PRIu64 ": ",
			       dataset->config->name, dataset_shard_name(dataset, shard), offset);
}

/* ---- many at once ---- */

uint64_t ctl_windows_block(const struct ctl_windows *reader)
{
	uint64_t fit = BLOCK_BYTES / reader->window_bytes;

	if (!reader->stores)
		return 1;
	return fit < 1 ? 1 : fit < BLOCK_WINDOWS ? fit : BLOCK_WINDOWS;
}

struct block {
	struct ctl_windows *reader;
	const struct ctl_window *window;
	char *tokens;
};

static bool read_each(const struct parallel *p, struct fault *fault)
{
	struct block *b = p->context;

	return read_window(
		b->reader, &b->window[p->i], b->tokens + p->i * b->reader->window_bytes, fault);
}

uint64_t ctl_windows_read(
	struct ctl_windows *reader, const struct ctl_window *window, uint64_t n, void *tokens)
{
	struct block b = {reader, window, tokens};
	struct fault fault;
	uint64_t good = parallel_for(n, reader->stores ? CTL_GETS : 1, read_each, &b, &fault);

	if (good < n)
		ctl_fail("%s", fault.text);
	return good;
}

void ctl_windows_close(struct ctl_windows *reader)
{
	if (!reader)
		return;
	for (unsigned i = 0; i < OPEN_FILES; i++)
		close_file(&reader->file[i]);
	if (reader->frames)
		frames_free(reader->frames);
	free(reader);
}
