#include "daemon/reader/open.h"

#include "daemon/catalog/dataset_shard.h"
#include "daemon/reader/annotations.h"
#include "daemon/reader/end.h"
#include "daemon/reader/read.h"
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SCARCE_MS = 300 };

static struct file *file_of(struct io_work *work)
{
	return (struct file *)((char *)work - offsetof(struct file, work));
}

struct shard *index_freed(struct reader *reader, struct shard *shard)
{
	if (!shard)
		return NULL;
	assert(reader->indexes_bytes >= shard->facts.index_bytes);
	reader->indexes_bytes -= shard->facts.index_bytes;
	return shard;
}

/* Out of descriptors: takes one from the table, so that no stream fails, and begins again. */
static void begin_with_descriptor(
	struct reader *reader, struct file *file, void (*begin)(struct reader *, struct file *))
{
	struct file_before *before = &file->before;
	unsigned ticks = file->work.ticks;

	before->fd = files_take_descriptor(&reader->files, &before->shard);
	index_freed(reader, before->shard);
	file->scarce = before->fd < 0;
	begin(reader, file);
	file->work.ticks = ticks; /* status names a shard that waits for long */
}

/* In the pool. There is none: waits until another process or stream may have closed one. */
static void wait_for_descriptor(const struct file *file)
{
	const struct timespec pause = {0, SCARCE_MS * 1000000L};

	if (file->scarce)
		nanosleep(&pause, NULL);
}

/* ---- the outcome ---- */

/* Makes the file unknown and fails all reads that wait for it, with file->fault. */
static void file_fail(struct reader *reader, struct file *file)
{
	struct reads waiting = STAILQ_HEAD_INITIALIZER(waiting);
	struct read *read;

	assert(file->fault.code != FAULT_NONE && !file->shard);
	files_forget(file);
	file->state = FILE_CLOSED;
	STAILQ_CONCAT(&waiting, &file->waiting);
	while ((read = reads_take(&waiting))) {
		read->fault = file->fault;
		read_fail(reader, read);
	}
}

/* A shard that is found to be plain only after its opening can use O_DIRECT, too. */
static void file_go_direct(struct reader *reader, struct file *file)
{
	file->direct = fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) | O_DIRECT) == 0;
	if (!file->direct)
		reader_note_buffered(reader, file);
}

static void file_ready(struct reader *reader, struct file *file)
{
	struct read *read;

	if (file->stored) {
		file->nowait = true; /* what is not in memory is not read */
	} else {
		/* O_NONBLOCK was only for the open(). */
		fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_NONBLOCK);
		/* Windows are in random order: read no more than the window. */
		if (file->dataset->config->shuffle == ORDER_GLOBAL)
			posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
		file->nowait = io_knows_nowait(file->fd);
		watch_begin(file);
	}
	file->state = FILE_OPEN;
	while ((read = reads_take(&file->waiting)))
		read_start(reader, read);
}

/* ---- the shard, if a descriptor is not enough ---- */

static void shard_done(void *owner, struct io_work *work);

/* In the pool. */
static void close_before(struct file *file)
{
	struct file_before *before = &file->before;

	shard_close(before->shard);
	if (before->fd >= 0)
		close(before->fd);
	*before = (struct file_before){.fd = -1};
}

/* In the pool. False: file->fault. */
static bool shard_make(struct file *file)
{
	struct shard *shard = dataset_open_shard(
		file->dataset, file->number, file->path, file->fd, file->frames, &file->fault);

	if (!shard)
		return false;
	file->plain = shard->facts.plain;
	if (file->plain)
		file->data_at = shard->facts.data_at;
	/* Some shards show that they are plain only in their index. Then the index is kept for
	 * annotations only. */
	if (file->plain && !annotations_in_files(file->dataset, shard)) {
		shard_close(shard);
		shard = NULL;
	}
	file->shard = shard;
	if (file->stored || watch_sides(file))
		return true;
	shard_close(shard);
	file->shard = NULL;
	return false;
}

/* In the pool. */
static int64_t shard_call(struct io_work *work)
{
	struct file *file = file_of(work);

	close_before(file);
	for (struct shard *stripped; (stripped = file->stripped);) {
		file->stripped = stripped->next;
		shard_close(stripped);
	}
	wait_for_descriptor(file);
	if (file->stored)
		store_on_behalf(file->session);
	return shard_make(file) ? 0 : -1;
}

static void shard_begin(struct reader *reader, struct file *file)
{
	/* At most a quarter is reserved, so that neither a large index nor many openings at once
	 * evict all other indexes. */
	uint64_t most = reader->indexes_most / 4 - reader->reserved;
	struct shard *stripped;

	assert(reader->reserved <= reader->indexes_most / 4 && file->reserved == 0);
	file->reserved = reader->index_largest < most ? reader->index_largest : most;
	reader->reserved += file->reserved;
	reader->indexes_bytes += file->reserved;
	while (reader->indexes_bytes > reader->indexes_most &&
		(stripped = index_freed(reader, files_take_index(&reader->files)))) {
		stripped->next = file->stripped;
		file->stripped = stripped;
	}
	file->frames = file->share->frames;
	file->fault.code = FAULT_NONE;
	file->work.call = shard_call;
	file->work.done = shard_done;
	if (file->stored)
		store_allow(reader->stores, file->session);
	reader_submit(reader, &file->work, file->share, file->stored);
}

/* It was cancelled when nobody needed it, and somebody does now. */
static bool cancelled_too_early(struct file *file)
{
	return file->stored && file->fault.error == ECANCELED && !STAILQ_EMPTY(&file->waiting) &&
	       may_repeat(EINTR, &file->tries);
}

static void opening_ended(struct reader *reader, struct file *file)
{
	if (!file->held)
		return;
	assert(reader->openings > 0);
	file->held = false;
	reader->openings--;
	files_put(&reader->files, file);
}

void opening_cancel(struct reader *reader, struct file *file)
{
	assert(file->held && STAILQ_EMPTY(&file->waiting));
	store_cancel(reader->stores, file->session);
	if (!reader->ops->withdraw(reader->backend, &file->work))
		return;
	fault_errno(&file->fault, ECANCELED, "", "cancelled");
	file->work.result = -1;
	shard_done(reader, &file->work);
}

static void shard_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct file *file = file_of(work);
	assert(work->result == 0 || file->fault.code != FAULT_NONE);
	reader->reserved -= file->reserved;
	reader->indexes_bytes -= file->reserved;
	file->reserved = 0;
	if (work->result != 0 && cancelled_too_early(file)) {
		shard_begin(reader, file);
		return;
	}
	if (work->result == 0) {
		/* A fault may be left from an index that was good when it was read again. */
		file->fault.code = FAULT_NONE;
		uint64_t bytes = file->shard ? file->shard->facts.index_bytes : 0;

		reader->indexes_bytes += bytes;
		reader->index_largest =
			bytes > reader->index_largest ? bytes : reader->index_largest;
		if (reader->direct && file->plain && !file->stored)
			file_go_direct(reader, file);
		file_ready(reader, file);
		opening_ended(reader, file);
		return;
	}
	if (file->fault.code != FAULT_DESCRIPTORS) {
		file_fail(reader, file);
		opening_ended(reader, file);
		return;
	}
	begin_with_descriptor(reader, file, shard_begin); /* for its side files */
}

/* ---- the descriptor ---- */

static void open_done(void *owner, struct io_work *work);

/* In the pool. */
static int64_t open_call(struct io_work *work)
{
	struct file *file = file_of(work);

	close_before(file);
	wait_for_descriptor(file);
	return io_open(file->path, file->flags, &file->found);
}

static void open_begin(struct reader *reader, struct file *file)
{
	file->work.call = open_call;
	file->work.done = open_done;
	reader_submit(reader, &file->work, file->share, false);
}

/* A shard in a store has no descriptor. */
static void stored_begin(struct reader *reader, struct file *file)
{
	file->session = opening_session(reader, file);
	file->held = true;
	file->users++;
	reader->openings++;
	shard_begin(reader, file);
}

static void open_refused(struct reader *reader, struct file *file, int error)
{
	if (error == EINVAL && file->direct) {
		reader_note_buffered(reader, file);
		file->flags &= ~O_DIRECT;
		open_begin(reader, file);
		return;
	}
	if (error == EMFILE || error == ENFILE) {
		begin_with_descriptor(reader, file, open_begin);
		return;
	}
	if (may_repeat(error, &file->tries)) {
		open_begin(reader, file);
		return;
	}
	if (error == ENOENT || error == ENOTDIR)
		fault_set(&file->fault, FAULT_CHANGED, "", "%s", strerror(error));
	else
		fault_errno(&file->fault, error, "", "%s", strerror(error));
	file_fail(reader, file);
}

static void open_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct file *file = file_of(work);

	assert(file->state == FILE_OPENING && file->fd == -1);
	if (work->result < 0) {
		open_refused(reader, file, (int)-work->result);
		return;
	}
	file->fd = (int)work->result;
	file->align = io_align(&file->found);
	file->scarce = false;
	watch_open(file);

	struct stat st = stat_of(&file->found);

	if (!dataset_same_shard(file->dataset, file->number, &st, &file->fault)) {
		fault_prefix(&file->fault,
			"not the file that tokend listed (restore it, or reload tokend and attach "
			"again): ");
		file_fail(reader, file);
	} else if (file->plain) {
		file_ready(reader, file);
	} else {
		shard_begin(reader, file);
	}
}

void file_begin(struct reader *reader, struct file *file)
{
	assert(file->state == FILE_CLOSED && file->known && file->before.fd < 0);
	file->state = FILE_OPENING;
	file->tries = 0;
	file->scarce = false;
	dataset_shard_path(file->dataset, file->number, file->path, PATH_MAX);
	/* If it is not plain, its header and index are read before any tokens. */
	file->plain = dataset_is_plain(file->dataset, file->number) && !file->dataset->marked;
	file->direct = reader->direct && file->plain && !file->stored;
	/* O_NONBLOCK: a shard may have been replaced by a FIFO, whose open() would wait for a
	 * writer. */
	file->flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (file->direct ? O_DIRECT : 0);
	file->data_at = dataset_data_at(file->dataset, file->number);
	/* The pool closes what the entry's former shard left. */
	file->before =
		(struct file_before){.shard = index_freed(reader, file->shard), .fd = file->fd};
	file->shard = NULL;
	file->fd = -1;
	if (file->stored)
		stored_begin(reader, file);
	else
		open_begin(reader, file);
}
