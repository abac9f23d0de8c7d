/*
 * The table of open files. A file that is not in use stays open until there are too many, or no
 * descriptors are left; the least recently used one is closed first. Opening and closing may hang,
 * so both run in the pool.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/reader/internal.h"
#include "daemon/store/store.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	TRIES = 1000, /* so many EINTR or EAGAIN in a row are an error */
	SCARCE_MS = 300,
};

bool files_init(struct files *files, unsigned most, uint64_t indexes_most)
{
	assert(most >= 1);
	files->most = most;
	files->indexes_most = indexes_most;
	files->chains = 1;
	while (files->chains < most)
		files->chains *= 2;
	files->chain = calloc(files->chains, sizeof(*files->chain));
	TAILQ_INIT(&files->idle);
	pthread_mutex_init(&files->mutex, NULL);
	pthread_cond_init(&files->changed, NULL);
	return files->chain;
}

static void file_close(struct file *file)
{
	if (!file)
		return;
	shard_close(file->shard);
	if (file->fd >= 0)
		close(file->fd);
	free(file->path);
	free(file);
}

/* ---- the table; called with the mutex ---- */

static struct files_chain *chain_of(
	const struct files *files, const struct dataset *dataset, uint64_t shard)
{
	uint64_t key = order_mix64((uintptr_t)dataset ^ shard * UINT64_C(0x9e3779b97f4a7c15));

	return &files->chain[key & (files->chains - 1)];
}

static struct file *find(const struct files *files, const struct dataset *dataset, uint64_t shard)
{
	struct file *file;

	LIST_FOREACH(file, chain_of(files, dataset, shard), hashed)
	if (file->dataset == dataset && file->number == shard)
		return file;
	return NULL;
}

static void use(struct files *files, struct file *file)
{
	assert(file->open);
	if (file->users++ == 0)
		TAILQ_REMOVE(&files->idle, file, idle);
}

static void forget(struct file *file)
{
	if (file->known)
		LIST_REMOVE(file, hashed);
	file->known = false;
}

static void put(struct files *files, struct file *file)
{
	assert(file->users > 0);
	if (--file->users > 0)
		return;
	if (file->known)
		TAILQ_INSERT_TAIL(&files->idle, file, idle);
	else
		TAILQ_INSERT_HEAD(&files->idle, file, idle);
}

static uint64_t index_bytes(const struct file *file)
{
	return file->shard ? file->shard->facts.index_bytes : 0;
}

static void take_idle(struct files *files, struct file *file)
{
	assert(file->users == 0 && files->indexes_bytes >= index_bytes(file));
	TAILQ_REMOVE(&files->idle, file, idle);
	forget(file);
	files->count--;
	files->indexes_bytes -= index_bytes(file);
}

/* Takes the next file without users that is in excess: one that is unknown, one of too many, or one
 * with an index, of which there may be @indexes_most bytes. NULL: none. */
static struct file *take_excess(struct files *files, uint64_t indexes_most)
{
	struct file *file;

	TAILQ_FOREACH(file, &files->idle, idle)
	if (!file->known || files->count > files->most ||
		(files->indexes_bytes > indexes_most && index_bytes(file) > 0)) {
		take_idle(files, file);
		return file;
	}
	return NULL;
}

static struct file *take_descriptor(struct files *files)
{
	struct file *file;

	TAILQ_FOREACH(file, &files->idle, idle)
	if (file->fd >= 0) {
		take_idle(files, file);
		return file;
	}
	return NULL;
}

/* NULL: out of memory. */
static struct file *add(struct files *files, const struct dataset *dataset, uint64_t shard)
{
	struct file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	file->dataset = dataset;
	file->number = shard;
	file->fd = -1;
	file->users = 1;
	file->known = true;
	files->count++;
	LIST_INSERT_HEAD(chain_of(files, dataset, shard), file, hashed);
	return file;
}

/* ---- any thread ---- */

void files_free(struct files *files)
{
	struct file *file;

	while ((file = TAILQ_FIRST(&files->idle))) {
		take_idle(files, file);
		file_close(file);
	}
	assert(files->count == 0 && files->indexes_bytes == 0);
	free(files->chain);
	pthread_mutex_destroy(&files->mutex);
	pthread_cond_destroy(&files->changed);
}

struct file *files_get(struct files *files, const struct dataset *dataset, uint64_t shard)
{
	pthread_mutex_lock(&files->mutex);
	struct file *file = find(files, dataset, shard);

	if (file && file->open)
		use(files, file);
	else
		file = NULL;
	pthread_mutex_unlock(&files->mutex);
	return file;
}

void files_put(struct files *files, struct file *file)
{
	pthread_mutex_lock(&files->mutex);
	put(files, file);
	pthread_mutex_unlock(&files->mutex);
}

void files_tick(struct files *files)
{
	struct file *file;
	uint64_t indexes = 0;
	unsigned idle = 0;

	pthread_mutex_lock(&files->mutex);
	for (unsigned i = 0; i < files->chains; i++)
		LIST_FOREACH(file, &files->chain[i], hashed)
	if (file->open && file->fd >= 0)
		atomic_store(&file->due, true);
	TAILQ_FOREACH(file, &files->idle, idle)
	{
		assert(file->open && file->users == 0);
		indexes += index_bytes(file);
		idle++;
	}
	assert(idle <= files->count && indexes <= files->indexes_bytes);
	pthread_mutex_unlock(&files->mutex);
}

void files_forget(struct files *files, struct file *file)
{
	pthread_mutex_lock(&files->mutex);
	forget(file);
	pthread_mutex_unlock(&files->mutex);
}

void files_buffer(struct files *files, struct file *file)
{
	char line[LIMIT_TEXT_BYTES];

	atomic_store(&file->direct, false);
	if (atomic_exchange(&files->logged, true))
		return;
	snprintf(line, sizeof(line),
		"direct: %.900s: its file system refuses O_DIRECT; shards there are read through "
		"the page cache",
		file->path);
	files->log(line);
}

/* ---- opening: in the pool ---- */

static void close_excess(struct files *files, uint64_t indexes_most)
{
	struct file *file;

	do {
		pthread_mutex_lock(&files->mutex);
		file = take_excess(files, indexes_most);
		pthread_mutex_unlock(&files->mutex);
		file_close(file);
	} while (file);
}

/* Out of descriptors: closes a file, so that no stream fails, or waits until another process or
 * stream may have closed one. False: the reader is closed. */
static bool spare_descriptor(struct reader *reader)
{
	const struct timespec pause = {0, SCARCE_MS * 1000000L};

	pthread_mutex_lock(&reader->files.mutex);
	struct file *file = take_descriptor(&reader->files);

	pthread_mutex_unlock(&reader->files.mutex);
	file_close(file);
	if (!file)
		nanosleep(&pause, NULL);
	return !atomic_load(&reader->closing);
}

static bool open_descriptor(
	struct reader *reader, struct file *file, struct stat *found, struct fault *fault)
{
	/* O_NONBLOCK: a shard may have been replaced by a FIFO, whose open() would wait for a
	 * writer. */
	int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, error;

	for (unsigned tries = 0; tries < TRIES;) {
		file->fd = open(file->path, flags | (file->direct ? O_DIRECT : 0));
		if (file->fd >= 0 && fstat(file->fd, found) == 0) {
			file->align = io_align(file->fd);
			fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_NONBLOCK);
			return true;
		}
		error = errno;
		if (file->fd >= 0)
			close(file->fd);
		file->fd = -1;
		if (error == EINVAL && file->direct)
			files_buffer(&reader->files, file);
		else if (error == EINTR || error == EAGAIN)
			tries++;
		else if ((error != EMFILE && error != ENFILE) || !spare_descriptor(reader))
			break;
	}
	if (error == ENOENT || error == ENOTDIR)
		return fault_set(fault, FAULT_CHANGED, "", "%s", strerror(error));
	return fault_errno(fault, error, "", "%s", strerror(error));
}

/* A side file must still be the one that was compared with the list. @b: NULL: there is none. */
static bool look_at_side(
	struct file *file, const struct bytes *b, const char *what, struct fault *fault)
{
	struct stat found;

	if (!b)
		return true;
	if (fstat(b->fd, &found) < 0) {
		int error = errno;

		return fault_errno(fault, error, "", "%s%s", what, strerror(error));
	}
	if (bytes_id(&found) != b->id)
		return fault_set(fault, FAULT_DATA, "", "%s" PHRASE_CHANGED_OPENING, what);
	look_begin(&file->look[file->looks++], b->fd, what, &found);
	file->nowait = file->nowait && io_knows_nowait(b->fd);
	return true;
}

/* Opens what a descriptor is not enough for: a shard's header and index, and its side files. */
static bool open_shard(
	struct reader *reader, const struct read *read, struct file *file, struct fault *fault)
{
	struct frames *frames = reader->share ? reader->share[read->window.stream] : NULL;

	/* Room for the index that is read now. */
	close_excess(&reader->files, reader->files.indexes_most / 4 * 3);
	do
		file->shard = dataset_open_shard(
			file->dataset, file->number, file->path, file->fd, frames, fault);
	while (!file->shard && fault->code == FAULT_DESCRIPTORS && spare_descriptor(reader));
	if (!file->shard)
		return false;
	file->plain = file->shard->facts.plain;
	if (file->plain)
		file->data_at = file->shard->facts.data_at;
	/* Some shards show that they are plain only in their index. Then the index is kept for
	 * annotations only. */
	if (file->plain && !annotations_in_files(file->dataset, file->shard)) {
		shard_close(file->shard);
		file->shard = NULL;
	}
	if (read->stored)
		return true;
	if (reader->direct && file->plain) {
		file->direct = fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) | O_DIRECT) == 0;
		if (!file->direct)
			files_buffer(&reader->files, file);
	}
	const struct shard *shard = file->shard;

	return !shard || (look_at_side(file, shard->index, "its index: ", fault) &&
				 look_at_side(file, shard->mask, "its loss mask: ", fault));
}

static bool open_file(
	struct reader *reader, const struct read *read, struct file *file, struct fault *fault)
{
	const struct dataset *d = file->dataset;
	char path[PATH_MAX];
	struct stat found;

	shard_list_path(&d->list, file->number, path, sizeof(path));
	file->path = strdup(path);
	if (!file->path)
		return fault_memory(fault);
	/* If it is not plain, its header and index are read before any tokens. */
	file->plain = dataset_is_plain(d, file->number) && !d->marked;
	file->data_at = dataset_data_at(d, file->number);
	if (read->stored) {
		file->nowait = true; /* what is not in memory is not read */
		return open_shard(reader, read, file, fault);
	}
	file->direct = reader->direct && file->plain;
	if (!open_descriptor(reader, file, &found, fault))
		return false;
	if (!dataset_same_shard(d, file->number, &found, fault))
		return fault_prefix(fault,
			"not the file that tokend listed (restore it, or reload tokend and attach "
			"again): ");
	/* Windows are in random order: read no more than the window. */
	if (d->config->shuffle == ORDER_GLOBAL)
		posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
	look_begin(&file->look[file->looks++], file->fd, "", &found);
	file->nowait = io_knows_nowait(file->fd);
	return file->plain || open_shard(reader, read, file, fault);
}

struct file *files_open(struct reader *reader, struct read *read)
{
	struct files *files = &reader->files;
	const struct reader_read *window = &read->window;
	struct file *file;

	pthread_mutex_lock(&files->mutex);
	while ((file = find(files, window->dataset, window->shard)) && !file->open &&
		!read_is_over(read))
		pthread_cond_wait(&files->changed, &files->mutex);
	bool open = file && file->open;

	if (open)
		use(files, file);
	else if (!file)
		file = add(files, window->dataset, window->shard);
	else
		file = NULL; /* another thread goes on opening it */
	pthread_mutex_unlock(&files->mutex);
	if (open)
		return file;
	if (!file) {
		if (read_is_over(read))
			fault_errno(&read->fault, ECANCELED, "", "cancelled");
		else
			fault_memory(&read->fault);
		return NULL;
	}
	close_excess(files, files->indexes_most);
	open = open_file(reader, read, file, &read->fault);

	pthread_mutex_lock(&files->mutex);
	file->open = open;
	files->indexes_bytes += index_bytes(file);
	if (!open) {
		forget(file);
		put(files, file);
		take_idle(files, file);
	}
	pthread_cond_broadcast(&files->changed);
	pthread_mutex_unlock(&files->mutex);
	if (open)
		return file;
	file_close(file);
	return NULL;
}
