#include "daemon/reader/files.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static struct files_chain *files_chain(
	const struct files *files, const struct dataset *dataset, uint64_t shard)
{
	uint64_t key = order_mix64((uintptr_t)dataset ^ shard * UINT64_C(0x9e3779b97f4a7c15));

	return &files->chain[key & (files->chains - 1)];
}

static unsigned files_chains(unsigned count)
{
	unsigned chains = 1;

	while (chains < count)
		chains *= 2;
	return chains;
}

uint64_t files_memory(unsigned count)
{
	return (uint64_t)count * (sizeof(struct file) + PATH_MAX) +
	       files_chains(count) * sizeof(struct files_chain);
}

bool files_init(struct files *files, unsigned count)
{
	assert(count >= 1);
	files->count = count;
	files->chains = files_chains(count);
	files->file = calloc(count, sizeof(*files->file));
	files->chain = calloc(files->chains, sizeof(*files->chain));
	files->paths = malloc((size_t)count * PATH_MAX);
	if (!files->file || !files->chain || !files->paths) {
		files->count = 0;
		files_free(files);
		return false;
	}
	TAILQ_INIT(&files->idle);
	for (unsigned i = 0; i < count; i++) {
		struct file *file = &files->file[i];

		file->fd = -1;
		file->before.fd = -1;
		file->path = files->paths + (size_t)i * PATH_MAX;
		STAILQ_INIT(&file->waiting);
		STAILQ_INIT(&file->watch.ended);
		STAILQ_INIT(&file->watch.held);
		TAILQ_INSERT_TAIL(&files->idle, file, idle);
	}
	return true;
}

void files_free(struct files *files)
{
	for (unsigned i = 0; i < files->count; i++) {
		assert(files->file[i].users == 0 && files->file[i].before.fd < 0);
		shard_close(files->file[i].shard);
		if (files->file[i].fd >= 0)
			close(files->file[i].fd);
	}
	free(files->file);
	free(files->chain);
	free(files->paths);
}

void files_forget(struct file *file)
{
	if (!file->known)
		return;
	LIST_REMOVE(file, hashed);
	file->known = false;
}

void files_retire(struct files *files, struct file *file)
{
	assert(file->users == 0);
	files_forget(file);
	TAILQ_REMOVE(&files->idle, file, idle);
	TAILQ_INSERT_HEAD(&files->idle, file, idle);
}

static struct file *files_find(
	struct files_chain *chain, const struct dataset *dataset, uint64_t shard)
{
	struct file *file;

	LIST_FOREACH(file, chain, hashed)
	if (file->dataset == dataset && file->number == shard)
		return file;
	return NULL;
}

const struct file *files_known(
	const struct files *files, const struct dataset *dataset, uint64_t shard)
{
	return files_find(files_chain(files, dataset, shard), dataset, shard);
}

struct file *files_get(struct files *files, const struct dataset *dataset, uint64_t shard,
	unsigned *in_use, unsigned most)
{
	struct files_chain *chain = files_chain(files, dataset, shard);
	struct file *file = files_find(chain, dataset, shard);

	if ((!file || file->users == 0) && *in_use >= most)
		return NULL;
	if (!file) {
		file = TAILQ_FIRST(&files->idle);
		if (!file)
			return NULL;
		assert(file->users == 0 && STAILQ_EMPTY(&file->waiting));
		files_forget(file);
		file->dataset = dataset;
		file->number = shard;
		file->stored = dataset->objects != NULL;
		file->state = FILE_CLOSED;
		file->known = true;
		LIST_INSERT_HEAD(chain, file, hashed);
	}
	if (file->users++ == 0) {
		TAILQ_REMOVE(&files->idle, file, idle);
		file->in_use = in_use;
		++*in_use;
		files->in_use++;
	}
	return file;
}

void files_put(struct files *files, struct file *file)
{
	assert(file->users > 0);
	if (--file->users > 0)
		return;
	--*file->in_use;
	files->in_use--;
	assert(STAILQ_EMPTY(&file->waiting) && file->state != FILE_OPENING);
	assert(STAILQ_EMPTY(&file->watch.ended) && !file->watch.in_flight);
	if (file->known)
		TAILQ_INSERT_TAIL(&files->idle, file, idle);
	else
		TAILQ_INSERT_HEAD(&files->idle, file, idle);
}

struct shard *files_take_index(struct files *files)
{
	struct file *file;

	TAILQ_FOREACH(file, &files->idle, idle)
	{
		struct shard *shard = file->shard;

		assert(file->users == 0);
		if (!shard)
			continue;
		files_retire(files, file);
		file->shard = NULL;
		return shard;
	}
	return NULL;
}

int files_take_descriptor(struct files *files, struct shard **shard)
{
	struct file *file;

	TAILQ_FOREACH(file, &files->idle, idle)
	{
		assert(file->users == 0);
		if (file->fd < 0)
			continue;
		int fd = file->fd;

		files_forget(file);
		file->fd = -1;
		*shard = file->shard;
		file->shard = NULL;
		return fd;
	}
	return -1;
}
