/*
 * What is the same whatever way bytes are read: a request finds its file, waits until that is open
 * and known to be the one that was listed, reads until it has all, and ends exactly once.
 *
 *   queue → [parked: its stream may use no more entries of the table] → [waiting: the file is being
 * opened] → reading → finished
 *
 * What is no plain shard is read at the next commit if it lies in memory, else in the backend's
 * pool.
 *
 * Each request stands for at most one operation of the backend: its own read, or a share in the
 * opening it waits for, or in a look at the file that it has read. So depth of them are enough, and
 * everything is allocated when the disk is opened.
 */
#include "daemon/catalog/dataset_shard.h"
#include "daemon/reader/annotations.h"
#include "daemon/reader/files.h"
#include "daemon/reader/recheck.h"
#include "daemon/reader/share.h"
#include "daemon/reader/watch.h"
#include "daemon/shard/frames.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
	BATCH = 64,   /* works taken from the backend at once */
	TRIES = 1000, /* EINTR or EAGAIN in a row, then it is an error */
	SECTOR = 512,
};

struct request {
	struct io_work work;
	STAILQ_ENTRY(request) link; /* free, parked, waiting, found or finished */
	struct reader_read read;
	struct file *file;
	struct shard_place place; /* of what is no plain shard */
	char *staging;		  /* O_DIRECT's, own; NULL where the disk is not direct */
	uint64_t start; /* where in the file the first byte of `have` lies: aligned where direct */
	uint64_t have;	/* bytes read from there on */
	unsigned skip;	/* of these, bytes before the window */
	unsigned tries;
	bool staged;
	bool reopened; /* ESTALE gets one chance */
	struct reader_done done;
	char why[READER_WHY_BYTES];
};

struct reader {
	const struct io_ops *ops;
	void *backend;
	bool direct;
	uint64_t largest_window_bytes;
	unsigned in_flight;
	struct request *request; /* [depth] */
	struct requests unused, found, finished;
	struct watched watched; /* files to be looked at before their reads are finished */
	struct shares shares;
	unsigned depth;
	struct files files;
	struct frames *frames;		      /* NULL: nothing is compressed */
	uint64_t indexes_bytes, indexes_most; /* with what is reserved for those being made: */
	uint64_t reserved;
	uint64_t index_largest; /* that there was */
	char *staging;
	uint64_t staging_bytes;
	char notes[LIMIT_TEXT_BYTES];
	char warning[LIMIT_TEXT_BYTES];
	unsigned warnings; /* since it was taken; the first is there */
};

static uint64_t staging_each(const struct reader_options *options)
{
	uint64_t window = options->largest_window_bytes, align = IO_ALIGN;

	return options->direct ? (window + align - 1) / align * align + 2 * align : 0;
}

uint64_t reader_memory(const struct reader_options *options)
{
	return sizeof(struct reader) +
	       options->depth * (sizeof(struct request) + staging_each(options)) +
	       files_memory(options->files) + shares_memory(options->streams) +
	       options->frames_bytes + options->indexes_bytes;
}

static bool reader_allocate(struct reader *reader, const struct reader_options *options)
{
	uint64_t each = staging_each(options);

	reader->request = calloc(options->depth, sizeof(*reader->request));
	if (!reader->request || !files_init(&reader->files, options->files))
		return false;
	if (options->frames_bytes > 0 && !(reader->frames = frames_new(options->frames_bytes)))
		return false;
	if (!shares_init(&reader->shares, options->streams, reader->frames))
		return false;
	reader->staging_bytes = options->depth * each;
	if (each > 0) {
		void *staging = mmap(NULL, reader->staging_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (staging == MAP_FAILED)
			return false;
		reader->staging = staging;
	}
	for (unsigned i = 0; i < options->depth; i++) {
		reader->request[i].staging = reader->staging ? reader->staging + i * each : NULL;
		STAILQ_INSERT_TAIL(&reader->unused, &reader->request[i], link);
	}
	return true;
}

static void reader_release(struct reader *reader)
{
	if (reader->staging)
		munmap(reader->staging, reader->staging_bytes);
	if (reader->files.count > 0)
		files_free(&reader->files);
	shares_free(&reader->shares);
	if (reader->frames)
		frames_free(reader->frames);
	free(reader->request);
	free(reader);
}

static struct reader *reader_make(const struct io_ops *ops, const struct reader_options *options,
	const char **what, int *error)
{
	assert(options->depth >= 1 && options->depth <= LIMIT_READS);
	struct reader *reader = calloc(1, sizeof(*reader));

	*what = "memory";
	*error = ENOMEM;
	if (!reader)
		return NULL;
	reader->ops = ops;
	reader->direct = options->direct;
	reader->depth = options->depth;
	reader->indexes_most = options->indexes_bytes;
	reader->largest_window_bytes = options->largest_window_bytes;
	STAILQ_INIT(&reader->unused);
	STAILQ_INIT(&reader->found);
	STAILQ_INIT(&reader->finished);
	STAILQ_INIT(&reader->watched);
	if (reader_allocate(reader, options))
		reader->backend = ops->open(options->depth, what, error);
	if (!reader->backend) {
		reader_release(reader);
		return NULL;
	}
	return reader;
}

struct reader *reader_open_with(
	const struct io_ops *ops, const struct reader_options *options, char *why, size_t why_bytes)
{
	const char *what;
	int error;
	struct reader *reader = reader_make(ops, options, &what, &error);

	if (!reader)
		snprintf(why, why_bytes, "reading with %s: %s: %s (%s)", ops->name, what,
			strerrorname_np(error), strerror(error));
	return reader;
}

static bool is_forbidden(int error)
{
	return error == EPERM || error == EACCES || error == ENOSYS;
}

struct reader *reader_open(
	const struct reader_options *options, char *note, char *why, size_t text_bytes)
{
	const char *what;
	int error;

	snprintf(note, text_bytes, "%s", "");
	if (options->io == CONFIG_IO_PREAD)
		return reader_open_with(&pread_ops, options, why, text_bytes);

	struct reader *reader = reader_make(&uring_ops, options, &what, &error);

	if (reader)
		return reader;
	if (options->io == CONFIG_IO_URING) {
		snprintf(why, text_bytes,
			"io: uring: %s: %s (%s); let the container's seccomp profile and "
			"kernel.io_uring_disabled allow it, "
			"or write io: auto",
			what, strerrorname_np(error), strerror(error));
		return NULL;
	}
	if (is_forbidden(error))
		snprintf(note, text_bytes,
			"io_uring is forbidden here (%s): reading with a pool of %d pread threads",
			strerrorname_np(error), POOL_THREADS);
	else
		snprintf(note, text_bytes,
			"io_uring does not work here (%s: %s): reading with a pool of %d pread "
			"threads",
			what, strerrorname_np(error), POOL_THREADS);
	return reader_open_with(&pread_ops, options, why, text_bytes);
}

void reader_close(struct reader *reader)
{
	struct reader_done done[BATCH];

	if (!reader)
		return;
	reader_commit(reader);
	while (reader->in_flight > 0)
		reader_reap(reader, done, BATCH, 1000);
	reader->ops->close(reader->backend);
	reader_release(reader);
}

const char *reader_name(const struct reader *reader)
{
	return reader->ops->name;
}

const char *reader_notes(const struct reader *reader)
{
	return reader->notes;
}

bool reader_warning(struct reader *reader, char *text, size_t text_bytes)
{
	unsigned more = reader->warnings > 0 ? reader->warnings - 1 : 0;

	if (reader->warnings == 0)
		return false;
	snprintf(text, text_bytes, "%s%s", reader->warning, more > 0 ? ", as are others" : "");
	reader->warnings = 0;
	return true;
}

/* ---- reading ---- */

static struct share *share_of(struct reader *reader, const struct request *request)
{
	return &reader->shares.share[request->read.stream];
}

static void reader_submit(struct reader *reader, struct io_work *work, struct share *share)
{
	work->share = &share->pool;
	work_begun(work, false);
	work->ticks = 0;
	reader->ops->submit(reader->backend, work);
}

static void request_finish(
	struct reader *reader, struct request *request, enum reader_fault fault, int error)
{
	request->done = (struct reader_done){
		.tag = request->read.tag,
		.fault = fault,
		.error = error,
		.why = request->why,
	};
	STAILQ_INSERT_TAIL(&reader->finished, request, link);
}

/*
 * It ended: well, or with a fault of what was read. Whether that was the shard's, the next look at
 * its file says.
 */
static void request_hold(
	struct reader *reader, struct request *request, enum reader_fault fault, int error)
{
	struct file *file = request->file;
	bool straight = !file->source || file->straight;

	if (straight && request->staged && !file->watch.in_flight)
		look_keep(&file->watch.look[0], request->start, request->staging, request->have);
	request->done.fault = fault;
	request->done.error = error;
	STAILQ_INSERT_TAIL(&file->watch.ended, request, link);
	watch_add(&reader->watched, file, straight ? request->start + request->skip : SIZE_MAX);
}

static uint64_t read_bytes(const struct reader_read *read)
{
	return read->tokens * read->dataset->token_bytes;
}

/* As `have` counts: where the window ends. */
static uint64_t request_end(const struct request *request)
{
	return request->skip + read_bytes(&request->read);
}

/*
 * Asks for what is missing. O_DIRECT begins again with the sector in which it stopped: stopped at
 * the end of the file, it gets no further; at a bad sector, it is told so.
 */
static void request_continue(struct reader *reader, struct request *request)
{
	struct io_work *work = &request->work;
	char *to = request->staged ? request->staging : request->read.to;
	uint64_t from = request->have, end = request_end(request);

	if (request->staged) {
		from = from / SECTOR * SECTOR;
		end = (end + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
	}
	work->call = NULL;
	work->opening = NULL;
	work->fd = request->file->fd;
	work->nowait = request->file->nowait;
	work->direct = request->staged;
	work->to = to + from;
	work->bytes = end - from;
	work->at = request->start + from;
	reader_submit(reader, work, share_of(reader, request));
}

/* Says of the tokens, which are there, what is wanted besides them. Blocks only where the file has
 * a source.
 */
static bool request_mark(struct request *request, int *error)
{
	const struct reader_read *read = &request->read;

	return annotations_write(read->dataset, request->file->source, read->token, read->tokens,
		read->to, &read->annotations, error, request->why, sizeof(request->why));
}

/* In the pool, the tokens are there: may they be served? */
static bool request_check(struct request *request, int *error)
{
	return (recheck_passes(&request->read) || recheck_read(request->file, &request->read, error,
							  request->why, sizeof(request->why))) &&
	       request_mark(request, error);
}

/* In the pool. */
static int64_t request_decode(struct io_work *work)
{
	struct request *request = (struct request *)((char *)work - offsetof(struct request, work));
	const struct reader_read *read = &request->read;
	int error = EIO;

	return shard_read(request->file->source, read->token, read->tokens, read->to, &error,
		       request->why, sizeof(request->why)) &&
			       request_check(request, &error)
		       ? 0
		       : -error;
}

/* In the pool. */
static int64_t request_check_call(struct io_work *work)
{
	int error = EIO;

	return request_check(
		       (struct request *)((char *)work - offsetof(struct request, work)), &error)
		       ? 0
		       : -error;
}

static void request_call(
	struct reader *reader, struct request *request, int64_t (*call)(struct io_work *work))
{
	request->tries = 0;
	request->work = (struct io_work){.call = call, .fd = request->file->fd};
	reader_submit(reader, &request->work, share_of(reader, request));
}

/* The tokens are there, and annotations come from them alone. */
static void request_marked(struct reader *reader, struct request *request)
{
	int error = 0;

	if (request_mark(request, &error)) {
		request_hold(reader, request, READER_OK, 0);
		return;
	}
	files_put(&reader->files, request->file);
	request_finish(reader, request, READER_ERRNO, error);
}

static void request_start(struct reader *reader, struct request *request)
{
	const struct reader_read *read = &request->read;
	const struct shard *source = request->file->source;

	if (source && !request->file->straight) {
		/* Marks that come from files are read where their tokens are. */
		if (request->file->nowait && !annotations_in_files(read->dataset, source)) {
			request->place = shard_find(source, read->token);
			STAILQ_INSERT_TAIL(&reader->found, request, link);
			return;
		}
		request->staged = false;
		request_call(reader, request, request_decode);
		return;
	}
	request->start = request->file->data_at + read->token * read->dataset->token_bytes;
	request->staged = request->file->direct;
	request->skip = request->staged ? request->start % IO_ALIGN : 0;
	request->start -= request->skip;
	request->have = 0;
	request->tries = 0;
	request_continue(reader, request);
}

/* All that were found. A system call between two searches would keep them from waiting for memory
 * together.
 */
static void reader_try(struct reader *reader)
{
	struct request *request;

	while ((request = STAILQ_FIRST(&reader->found))) {
		const struct reader_read *read = &request->read;

		STAILQ_REMOVE_HEAD(&reader->found, link);
		request->staged = false;
		if (shard_try(request->file->source, request->place, read->tokens, read->to) &&
			recheck_passes(read))
			request_marked(reader, request);
		else
			request_call(reader, request, request_decode);
	}
}

/* ---- finding the file ---- */

/* It leaves the table. */
static struct shard *source_leaves(struct reader *reader, struct shard *source)
{
	if (source)
		reader->indexes_bytes -= source->facts.index_bytes;
	return source;
}

static void file_open(struct reader *reader, struct file *file)
{
	file->state = FILE_OPENING;
	file->work.call = NULL;
	file->work.opening = &file->opening;
	reader_submit(reader, &file->work, file->share);
}

/* It is looked through before it is read, in whatever way. */
static bool has_source(const struct file *file)
{
	return !dataset_is_plain(file->dataset, file->shard) || file->dataset->marked;
}

static void file_begin(struct reader *reader, struct file *file)
{
	file->tries = 0;
	dataset_shard_path(file->dataset, file->shard, file->path, PATH_MAX);
	file->direct = reader->direct && !has_source(file);
	file->opening.path = file->path;
	/* NONBLOCK: what was put in a shard's place may be a FIFO, whose open would wait for a
	 * writer. */
	file->opening.flags =
		O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (file->direct ? O_DIRECT : 0);
	file->data_at = dataset_data_at(file->dataset, file->shard);
	file->opening.source = source_leaves(reader, file->source);
	file->source = NULL;
	file->opening.old = file->fd;
	file->fd = -1;
	file_open(reader, file);
}

static bool request_place(struct reader *reader, struct request *request)
{
	struct share *share = share_of(reader, request);
	struct file *file = files_get(&reader->files, request->read.dataset, request->read.shard,
		&share->files, share_files_most(&reader->shares, share, reader->files.count));

	if (!file)
		return false;
	file->share = share;
	request->file = file;
	if (file->state == FILE_OPEN) {
		request_start(reader, request);
		return true;
	}
	STAILQ_INSERT_TAIL(&file->waiting, request, link);
	if (file->state == FILE_CLOSED)
		file_begin(reader, file);
	return true;
}

/*
 * Nobody overtakes who is parked of the same stream: a file that is always in use would keep them
 * out for ever.
 */
static void request_admit(struct reader *reader, struct request *request)
{
	struct share *share = share_of(reader, request);
	bool first = STAILQ_EMPTY(&share->parked);

	if (first && request_place(reader, request))
		return;
	if (first)
		TAILQ_INSERT_TAIL(&reader->shares.waiting, share, waiting);
	STAILQ_INSERT_TAIL(&share->parked, request, link);
}

/* Returns whether all that were parked could go on. */
static bool share_unpark(struct reader *reader, struct share *share)
{
	struct request *request;

	while ((request = STAILQ_FIRST(&share->parked))) {
		STAILQ_REMOVE_HEAD(&share->parked, link);
		if (request_place(reader, request))
			continue;
		STAILQ_INSERT_HEAD(&share->parked, request, link);
		return false;
	}
	return true;
}

static void reader_unpark(struct reader *reader)
{
	struct share *share = TAILQ_FIRST(&reader->shares.waiting), *next;

	for (; share; share = next) {
		next = TAILQ_NEXT(share, waiting);
		if (share_unpark(reader, share))
			TAILQ_REMOVE(&reader->shares.waiting, share, waiting);
	}
	/* The next one is the first to be let in next time. */
	if ((share = TAILQ_FIRST(&reader->shares.waiting))) {
		TAILQ_REMOVE(&reader->shares.waiting, share, waiting);
		TAILQ_INSERT_TAIL(&reader->shares.waiting, share, waiting);
	}
}

void reader_queue(struct reader *reader, const struct reader_read *read)
{
	struct request *request = STAILQ_FIRST(&reader->unused);

	assert(request);
	assert(!reader->direct || read_bytes(read) <= reader->largest_window_bytes);
	assert(read->stream < reader->shares.count);
	STAILQ_REMOVE_HEAD(&reader->unused, link);
	reader->in_flight++;
	request->read = *read;
	request->why[0] = 0;
	request->reopened = false;
	request_admit(reader, request);
}

void reader_commit(struct reader *reader)
{
	reader_try(reader);
	reader->ops->commit(reader->backend);
}

/* ---- what came back ---- */

static void reader_note_buffered(struct reader *reader, struct file *file)
{
	file->direct = false;
	if (!reader->notes[0])
		snprintf(reader->notes, sizeof(reader->notes),
			"direct: %.900s: its file system refuses O_DIRECT: such shards are read "
			"through the "
			"page cache",
			file->path);
}

static bool may_repeat(int error, unsigned *tries)
{
	return (error == EINTR || error == EAGAIN) && ++*tries < TRIES;
}

/*
 * The request has left its file. An NFS server that forgot the file may still know the path, and
 * whether that leads to the same file shows when it is opened again.
 */
static void request_fail(
	struct reader *reader, struct request *request, enum reader_fault fault, int error)
{
	if (error != ESTALE || request->reopened) {
		request_finish(reader, request, fault, error);
		return;
	}
	request->reopened = true;
	request->why[0] = 0;
	request_admit(reader, request);
}

static void read_failed(struct reader *reader, struct request *request, int error)
{
	struct file *file = request->file;

	if (may_repeat(error, &request->tries)) {
		request->why[0] = 0;
		request->work.call
			? reader_submit(reader, &request->work, share_of(reader, request))
			: request_continue(reader, request);
		return;
	}
	if (error == EINVAL && request->staged && !request->work.call) {
		/* Taken at open, refused now: this file system wants a coarser alignment. */
		fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_DIRECT);
		reader_note_buffered(reader, file);
		request_start(reader, request);
		return;
	}
	if (error == EBADMSG || error == ERANGE) {
		request_hold(reader, request, READER_ERRNO, error);
		return;
	}
	if (error == ESTALE)
		files_forget(file);
	files_put(&reader->files, file);
	request_fail(reader, request, READER_ERRNO, error);
}

/* The tokens are there, without the pool. */
static void request_succeed(struct reader *reader, struct request *request)
{
	if (request->file->source || !recheck_passes(&request->read))
		request_call(reader, request, request_check_call);
	else
		request_marked(reader, request);
}

static void read_done(struct reader *reader, struct request *request)
{
	struct io_work *work = &request->work;

	if (work->result < 0) {
		read_failed(reader, request, (int)-work->result);
		return;
	}

	if (work->call) { /* whole, and looked at */
		request_hold(reader, request, READER_OK, 0);
		return;
	}

	uint64_t had = request->have, end = request_end(request);

	request->have = work->at - request->start + (uint64_t)work->result;
	request->tries = 0;
	if (request->have < end && request->have > had) {
		request_continue(reader, request);
		return;
	}
	if (request->have < end) {
		request_hold(reader, request, READER_SHORT, 0);
		return;
	}
	if (request->staged)
		memcpy(request->read.to, request->staging + request->skip, end - request->skip);
	request_succeed(reader, request);
}

/* Nobody finds the file any more, and all who wait for it learn @why. */
static void file_fail(struct reader *reader, struct file *file, enum reader_fault fault, int error,
	const char *why)
{
	struct requests waiting = STAILQ_HEAD_INITIALIZER(waiting);
	struct request *request;

	files_forget(file);
	file->state = FILE_CLOSED;
	STAILQ_CONCAT(&waiting, &file->waiting);
	while ((request = STAILQ_FIRST(&waiting))) {
		STAILQ_REMOVE_HEAD(&waiting, link);
		snprintf(request->why, sizeof(request->why), "%s", why);
		files_put(&reader->files, file);
		request_fail(reader, request, fault, error);
	}
}

static void file_refused(struct reader *reader, struct file *file, int error)
{
	struct reader_opening *opening = &file->opening;

	if (error == EINVAL && file->direct) {
		reader_note_buffered(reader, file);
		opening->flags &= ~O_DIRECT;
		file_open(reader, file);
		return;
	}
	/* Short of descriptors, the table shrinks before a stream fails. */
	if (error == EMFILE || error == ENFILE) {
		opening->old = files_rob(&reader->files, &opening->source);
		source_leaves(reader, opening->source);
	}
	if (opening->old >= 0 || may_repeat(error, &file->tries)) {
		file_open(reader, file);
		return;
	}
	file_fail(reader, file, READER_ERRNO, error, "");
}

static void file_ready(struct reader *reader, struct file *file)
{
	struct request *request;

	/* NONBLOCK was meant for the open. */
	fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_NONBLOCK);
	if (file->work.call && reader->direct &&
		(!file->source || file->straight)) { /* plain, which shows only now */
		file->direct = fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) | O_DIRECT) == 0;
		if (!file->direct)
			reader_note_buffered(reader, file);
	}
	/* Windows in random order: read what is asked for, and nothing around it. */
	if (file->dataset->config->shuffle == ORDER_GLOBAL)
		posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
	file->nowait = file_knows_nowait(file->fd);
	watch_begin(file);
	file->state = FILE_OPEN;
	while ((request = STAILQ_FIRST(&file->waiting))) {
		STAILQ_REMOVE_HEAD(&file->waiting, link);
		request_start(reader, request);
	}
}

/*
 * In the pool. A shard may turn out to be plain only once its index was looked through; then that
 * is not kept, but for annotations.
 */
static int64_t source_open(struct io_work *work)
{
	struct file *file = (struct file *)((char *)work - offsetof(struct file, work));

	opening_make_room(&file->opening);
	for (struct shard *stripped; (stripped = file->stripped);) {
		file->stripped = stripped->next;
		shard_close(stripped);
	}
	struct shard *source = dataset_open_shard(file->dataset, file->shard, file->path, file->fd,
		file->frames, file->why, sizeof(file->why));

	if (!source)
		return errno ? -errno : -EBADMSG;
	file->straight = source->facts.plain;
	if (file->straight)
		file->data_at = source->facts.data_at;
	if (file->straight && !annotations_in_files(file->dataset, source)) {
		shard_close(source);
		source = NULL;
	}
	file->source = source;
	if (watch_sides(file))
		return 0;
	int error = errno;

	shard_close(source);
	file->source = NULL;
	return error ? -error : -EBADMSG;
}

static void source_begin(struct reader *reader, struct file *file)
{
	/* Neither a single large one nor many openings at once must cost all others their places.
	 */
	uint64_t most = reader->indexes_most / 4 - reader->reserved;
	struct shard *stripped;

	file->reserved = reader->index_largest < most ? reader->index_largest : most;
	reader->reserved += file->reserved;
	reader->indexes_bytes += file->reserved;
	while (reader->indexes_bytes > reader->indexes_most &&
		(stripped = source_leaves(reader, files_strip(&reader->files)))) {
		stripped->next = file->stripped;
		file->stripped = stripped;
	}
	file->frames = file->share->frames;
	file->work.call = source_open;
	reader_submit(reader, &file->work, file->share);
}

static void source_done(struct reader *reader, struct file *file)
{
	int error = file->work.result < 0 ? (int)-file->work.result : 0;

	reader->reserved -= file->reserved;
	reader->indexes_bytes -= file->reserved;
	if (error == EMFILE || error == ENFILE) { /* of what lies beside it: as with itself */
		file->opening.old = files_rob(&reader->files, &file->opening.source);
		source_leaves(reader, file->opening.source);
	}
	if (error == 0) {
		uint64_t bytes = file->source ? file->source->facts.index_bytes : 0;

		reader->indexes_bytes += bytes;
		reader->index_largest =
			bytes > reader->index_largest ? bytes : reader->index_largest;
		file_ready(reader, file);
	} else if (file->opening.old >= 0) {
		source_begin(reader, file);
	} else {
		file_fail(reader, file, READER_ERRNO, error, file->why);
	}
}

static void opening_done(struct reader *reader, struct file *file)
{
	char why[READER_WHY_BYTES];

	if (file->work.call) {
		source_done(reader, file);
		return;
	}
	if (file->work.result < 0) {
		file_refused(reader, file, (int)-file->work.result);
		return;
	}
	file->fd = (int)file->work.result;
	watch_open(file);

	struct stat st = stat_of(&file->opening.found);

	if (!dataset_same_shard(file->dataset, file->shard, &st, why, sizeof(why)))
		file_fail(reader, file, READER_REPLACED, 0, why);
	else if (!has_source(file))
		file_ready(reader, file);
	else
		source_begin(reader, file);
}

/* ---- is it still the same file? ---- */

static void reader_warn(struct reader *reader, const struct file *file)
{
	if (reader->warnings++ > 0)
		return;
	snprintf(reader->warning, sizeof(reader->warning),
		"%.800s: its ctime changed while it was open (mode, owner, links or name), the "
		"sampled bytes "
		"did not: going on",
		file->path);
}

static void file_looked(struct reader *reader, struct file *file)
{
	struct requests held = STAILQ_HEAD_INITIALIZER(held);
	struct watch *w = &file->watch;
	struct request *request;

	STAILQ_CONCAT(&held, &w->held);
	/* One that was changed is kept: opened anew it might pass for the one that was listed. */
	if (w->fault == READER_ERRNO)
		files_forget(file);
	if (w->fault == READER_OK && w->touched)
		reader_warn(reader, file);
	watch_end(&reader->watched, file);
	while ((request = STAILQ_FIRST(&held))) {
		STAILQ_REMOVE_HEAD(&held, link);
		files_put(&reader->files, file);
		if (w->fault == READER_OK) {
			request_finish(reader, request, request->done.fault, request->done.error);
			continue;
		}
		snprintf(request->why, sizeof(request->why), "%s", w->why);
		request_fail(reader, request, w->fault, w->error);
	}
}

/* Returns whether the backend has something to start. */
static bool reader_look(struct reader *reader)
{
	bool submitted = false;
	struct file *file;

	while ((file = watch_next(&reader->watched))) {
		if (watch_look(file)) {
			file_looked(reader, file);
			continue;
		}
		reader_submit(reader, &file->watch.work, file->share);
		submitted = true;
	}
	return submitted;
}

static void work_done(struct reader *reader, struct io_work *work)
{
	work_begun(work, false);
	if (work->look)
		file_looked(reader, work->look);
	else if (work->opening)
		opening_done(reader, (struct file *)((char *)work - offsetof(struct file, work)));
	else
		read_done(
			reader, (struct request *)((char *)work - offsetof(struct request, work)));
}

/* A fault is handed up alone: the next read that is queued may take its request, and its text with
 * that. */
static unsigned take_finished(struct reader *reader, struct reader_done *done, unsigned max)
{
	unsigned count = 0;
	struct request *request;

	while (count < max && (request = STAILQ_FIRST(&reader->finished))) {
		if (count > 0 && request->done.fault != READER_OK)
			break;
		STAILQ_REMOVE_HEAD(&reader->finished, link);
		STAILQ_INSERT_HEAD(&reader->unused, request, link);
		done[count++] = request->done;
		if (request->done.fault != READER_OK)
			break;
	}
	reader->in_flight -= count;
	return count;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Returns whether the caller of reader_reap() has a reason to look: something ended, or a kick. */
static bool reader_turn(struct reader *reader, int64_t deadline_ns)
{
	struct io_work *works[BATCH];
	bool kicked = false;
	unsigned count = reader->ops->reap(reader->backend, works, BATCH, deadline_ns, &kicked);

	for (unsigned i = 0; i < count; i++)
		work_done(reader, works[i]);
	reader_unpark(reader);
	reader_commit(reader);
	if (reader_look(reader))
		reader->ops->commit(reader->backend);
	return kicked || !STAILQ_EMPTY(&reader->finished);
}

unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms)
{
	assert(max >= 1 && timeout_ms >= 0);
	bool look = reader_turn(reader, 0);

	if (!look && timeout_ms > 0) {
		int64_t deadline_ns = now_ns() + timeout_ms * INT64_C(1000000);

		while (!look && now_ns() < deadline_ns)
			look = reader_turn(reader, deadline_ns);
	}
	return take_finished(reader, done, max);
}

void reader_tick(struct reader *reader)
{
	shares_tick(&reader->shares);
	for (unsigned i = 0; i < reader->depth; i++) {
		struct request *request = &reader->request[i];

		share_tick(share_of(reader, request), &request->work, request->file);
	}
	for (unsigned i = 0; i < reader->files.count; i++) {
		struct file *file = &reader->files.file[i];

		share_tick(file->share, &file->work, file);
		share_tick(file->share, &file->watch.work, file);
	}
	shares_ticked(&reader->shares, reader->ops, reader->backend);
	reader_unpark(
		reader); /* where a stream is slow no longer, nothing else may come back to do it */
}

struct reader_hang reader_hang(const struct reader *reader, uint32_t stream)
{
	return reader->shares.share[stream].hang;
}

void reader_kick(struct reader *reader)
{
	reader->ops->kick(reader->backend);
}
