/*
 * Opening a reader, queueing reads, and reaping them. One turn of reader_reap() takes the works
 * that the backend has done, admits and starts other reads, and looks at the files of reads that
 * have ended.
 */
#include "daemon/reader/reader.h"

#include "daemon/io/pool.h"
#include "daemon/reader/cancel.h"
#include "daemon/reader/end.h"
#include "daemon/reader/open.h"
#include "daemon/reader/queue.h"
#include "daemon/reader/read.h"
#include "daemon/reader/state.h"
#include "daemon/shard/frames.h"
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 64 }; /* works taken from the backend at once */

uint64_t reader_memory(const struct reader_options *options)
{
	return sizeof(struct reader) +
	       options->depth * staging_each(options->direct, options->largest_window_bytes) +
	       (options->depth + options->store_depth) * sizeof(struct read) +
	       files_memory(options->files) + shares_memory(options->streams) +
	       options->frames_bytes + options->indexes_bytes;
}

/* ---- opening and closing ---- */

static bool allocate_staging(struct reader *reader)
{
	uint64_t each = staging_each(reader->direct, reader->largest_window_bytes);

	reader->staging_bytes = reader->depth * each;
	if (each == 0)
		return true;
	void *staging = mmap(NULL, reader->staging_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (staging == MAP_FAILED)
		return false;
	reader->staging = staging;
	for (unsigned i = 0; i < reader->depth; i++)
		reader->read[i].staging = reader->staging + i * each;
	return true;
}

static bool reader_allocate(struct reader *reader, const struct reader_options *options)
{
	reader->read = calloc(reader->reads, sizeof(*reader->read));
	if (!reader->read || !files_init(&reader->files, options->files))
		return false;
	if (options->frames_bytes > 0 && !(reader->frames = frames_new(options->frames_bytes)))
		return false;
	if (!shares_init(&reader->shares, options->streams, reader->frames) ||
		!allocate_staging(reader))
		return false;
	for (unsigned i = 0; i < reader->reads; i++) {
		struct read *read = &reader->read[i];

		read->stored = i >= reader->depth;
		STAILQ_INSERT_TAIL(
			read->stored ? &reader->unused_stored : &reader->unused, read, link);
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
	free(reader->read);
	free(reader);
}

static struct reader *reader_new(const struct reader_options *options)
{
	struct reader *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return NULL;
	reader->direct = options->direct;
	reader->depth = options->depth;
	reader->reads = options->depth + options->store_depth;
	reader->stores = options->stores;
	reader->indexes_most = options->indexes_bytes;
	reader->largest_window_bytes = options->largest_window_bytes;
	STAILQ_INIT(&reader->unused);
	STAILQ_INIT(&reader->unused_stored);
	STAILQ_INIT(&reader->found);
	STAILQ_INIT(&reader->again);
	STAILQ_INIT(&reader->paused);
	STAILQ_INIT(&reader->finished);
	STAILQ_INIT(&reader->watched);
	if (reader_allocate(reader, options))
		return reader;
	reader_release(reader);
	return NULL;
}

/* NULL: @fault, as of io_ops.open(). */
static struct reader *reader_make(
	const struct io_ops *ops, const struct reader_options *options, struct fault *fault)
{
	assert(options->depth >= 1);
	assert(options->stores || options->store_depth == 0);
	assert(options->files <= STORE_SESSIONS - LIMIT_SESSIONS);
	struct reader *reader = reader_new(options);

	if (!reader) {
		io_open_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	reader->ops = ops;
	reader->backend = ops->open(reader->reads, fault);
	if (!reader->backend) {
		reader_release(reader);
		return NULL;
	}
	reader_check(reader);
	return reader;
}

struct reader *reader_open_with(
	const struct io_ops *ops, const struct reader_options *options, struct fault *fault)
{
	struct fault why;
	struct reader *reader = reader_make(ops, options, &why);

	if (!reader)
		fault_errno(fault, why.error, "io", "%s cannot be used: %s (%s)", ops->name,
			why.text, strerror(why.error));
	return reader;
}

static bool is_forbidden(int error)
{
	return error == EPERM || error == EACCES || error == ENOSYS;
}

static void note_fallback(const struct fault *fault, char *note, size_t note_bytes)
{
	if (is_forbidden(fault->error))
		snprintf(note, note_bytes,
			"io_uring is forbidden here (%s); reading with a pool of threads, at "
			"most %d",
			strerrorname_np(fault->error), POOL_ALL);
	else
		snprintf(note, note_bytes,
			"io_uring cannot be used here (%s); reading with a pool of threads, at "
			"most %d",
			fault->text, POOL_ALL);
}

struct reader *reader_open(
	const struct reader_options *options, char *note, size_t note_bytes, struct fault *fault)
{
	struct fault why;

	snprintf(note, note_bytes, "%s", "");
	if (options->io == CONFIG_IO_PREAD)
		return reader_open_with(&pread_ops, options, fault);

	struct reader *reader = reader_make(&uring_ops, options, &why);

	if (reader)
		return reader;
	if (options->io == CONFIG_IO_URING) {
		fault_errno(fault, why.error, "io",
			"io: uring: %s (%s); allow io_uring in the container's seccomp profile and "
			"in kernel.io_uring_disabled, or set io: auto",
			why.text, strerror(why.error));
		return NULL;
	}
	note_fallback(&why, note, note_bytes);
	return reader_open_with(&pread_ops, options, fault);
}

void reader_close(struct reader *reader)
{
	struct reader_done done[BATCH];

	if (!reader)
		return;
	reader_commit(reader);
	openings_cancel(reader);
	while (reader->in_flight > 0 || reader->openings > 0)
		reader_reap(reader, done, BATCH, 1000);
	reader_check(reader);
	reader_check_idle(reader);
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
	snprintf(text, text_bytes, "%s%s", reader->warning,
		more > 0 ? "; likewise for other files" : "");
	reader->warnings = 0;
	return true;
}

/* ---- in ---- */

void reader_queue(struct reader *reader, const struct reader_read *window)
{
	bool stored = window->dataset->objects != NULL;
	struct read *read = reads_take(stored ? &reader->unused_stored : &reader->unused);

	assert(read && read->state == READ_FREE && !read->file);
	assert(window->tokens > 0 && window->stream < reader->shares.count);
	assert(stored || !reader->direct || window_bytes(window) <= reader->largest_window_bytes);
	reader->in_flight++;
	read->cancelled = false;
	read->window = *window;
	read->fault.code = FAULT_NONE;
	read->reopened = false;
	read->attempts = 0;
	reader_admit(reader, read);
}

void reader_commit(struct reader *reader)
{
	reader_try_found(reader);
	reader->ops->commit(reader->backend);
}

/* ---- out ---- */

/* A fault is returned alone, because the next reader_queue() may reuse its read. */
static unsigned take_finished(struct reader *reader, struct reader_done *done, unsigned max)
{
	unsigned count = 0;
	struct read *read;

	while (count < max && (read = STAILQ_FIRST(&reader->finished))) {
		bool failed = read->fault.code != FAULT_NONE;

		if (count > 0 && failed)
			break;
		STAILQ_REMOVE_HEAD(&reader->finished, link);
		read_move(read, READ_FREE);
		STAILQ_INSERT_HEAD(
			read->stored ? &reader->unused_stored : &reader->unused, read, link);
		done[count++] = (struct reader_done){
			.tag = read->window.tag,
			.dataset = read->window.dataset,
			.tokens = read->window.tokens,
			.since_ns = read->window.since_ns,
			.fault = failed ? &read->fault : NULL,
		};
		if (failed)
			break;
	}
	assert(count <= reader->in_flight);
	reader->in_flight -= count;
	return count;
}

/* All pauses are equally long, so the first read's ends first. */
static void end_pauses(struct reader *reader)
{
	struct read *read;

	while ((read = STAILQ_FIRST(&reader->paused)) && read->due_ns <= io_now_ns()) {
		STAILQ_REMOVE_HEAD(&reader->paused, link);
		read->fault.code = FAULT_NONE;
		read->reopened = false;
		STAILQ_INSERT_TAIL(&reader->again, read, link);
	}
}

/* True: reader_reap() should return, because reads have finished or there was a kick. */
static bool reader_turn(struct reader *reader, int64_t deadline_ns)
{
	struct io_work *works[BATCH];
	const struct read *paused = STAILQ_FIRST(&reader->paused);
	bool kicked = false;

	if (paused && paused->due_ns < deadline_ns)
		deadline_ns = paused->due_ns;
	unsigned count = reader->ops->reap(reader->backend, works, BATCH, deadline_ns, &kicked);

	assert(count <= BATCH);
	for (unsigned i = 0; i < count; i++) {
		work_begun(works[i], false);
		works[i]->done(reader, works[i]);
	}
	end_pauses(reader);
	/* A look may find that an NFS server forgot the file. Then its reads begin again, once. */
	do {
		reader_admit_again(reader);
		reader_unpark(reader);
		reader_commit(reader);
		if (reader_look(reader))
			reader->ops->commit(reader->backend);
	} while (!STAILQ_EMPTY(&reader->again));
	return kicked || !STAILQ_EMPTY(&reader->finished);
}

unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms)
{
	assert(max >= 1 && timeout_ms >= 0);
	bool look = reader_turn(reader, 0);

	if (!look && timeout_ms > 0) {
		int64_t deadline_ns = io_now_ns() + timeout_ms * INT64_C(1000000);

		reader_check_idle(reader);
		while (!look && io_now_ns() < deadline_ns)
			look = reader_turn(reader, deadline_ns);
	}
	return take_finished(reader, done, max);
}

void reader_kick(struct reader *reader)
{
	reader->ops->kick(reader->backend);
}

struct reader_busy reader_busy(const struct reader *reader)
{
	for (unsigned i = 0; i < reader->depth; i++) {
		const struct read *read = &reader->read[i];

		if (read->state != READ_FREE && read->state != READ_DONE)
			return (struct reader_busy){true, read->window.dataset, read->window.shard};
	}
	for (unsigned i = 0; i < reader->files.count; i++) {
		const struct file *file = &reader->files.file[i];

		if ((file->state == FILE_OPENING && !file->stored) || file->watch.in_flight)
			return (struct reader_busy){true, file->dataset, file->number};
	}
	return (struct reader_busy){.any = false};
}

/* ---- slow storage ---- */

void reader_tick(struct reader *reader)
{
	shares_tick(&reader->shares);
	/* A read that waits for a store is not slow storage: see store_waits(). */
	for (unsigned i = 0; i < reader->depth; i++) {
		struct read *read = &reader->read[i];

		share_tick(share_of(reader, read), &read->work, read->file);
	}
	for (unsigned i = 0; i < reader->files.count; i++) {
		struct file *file = &reader->files.file[i];

		if (file->stored)
			continue;
		file->watch.due = true;
		share_tick(file->share, &file->work, file);
		share_tick(file->share, &file->watch.work, file);
	}
	shares_ticked(&reader->shares, reader->ops, reader->backend);
	/* A stream that is no longer slow may use more entries, and no completion may follow. */
	reader_unpark(reader);
	reader_check(reader);
}

struct reader_hang reader_hang(const struct reader *reader, uint32_t stream)
{
	assert(stream < reader->shares.count);
	return reader->shares.share[stream].hang;
}
