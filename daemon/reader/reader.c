/* Opening a reader, queueing reads, and reaping them. */
#include "daemon/reader/reader.h"

#include "daemon/reader/internal.h"
#include "daemon/shard/bytes.h"
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	BATCH = 64,	/* works taken from the io at once */
	SLOW_TICKS = 2, /* a read that takes longer is reported */
};

/* Bytes of staging for one read; 0 without @direct. A window may begin and end inside a block. */
static uint64_t staging_of(bool direct, uint64_t largest_window_bytes)
{
	uint64_t align = IO_ALIGN;

	return direct ? (largest_window_bytes + align - 1) / align * align + 2 * align : 0;
}

uint64_t reader_memory(const struct reader_options *options)
{
	return sizeof(struct reader) +
	       options->depth * staging_of(options->direct, options->largest_window_bytes) +
	       (options->depth + options->store_depth) * sizeof(struct read) +
	       options->files * sizeof(struct file) + options->frames_bytes +
	       options->indexes_bytes;
}

/* ---- opening and closing ---- */

static bool allocate_staging(struct reader *reader)
{
	reader->staging_bytes = reader->depth * reader->staging_each;
	if (reader->staging_bytes == 0)
		return true;
	void *staging = mmap(NULL, reader->staging_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (staging == MAP_FAILED)
		return false;
	reader->staging = staging;
	for (unsigned i = 0; i < reader->depth; i++)
		reader->read[i].staging = reader->staging + i * reader->staging_each;
	return true;
}

static bool allocate_frames(struct reader *reader, uint64_t bytes)
{
	if (bytes == 0)
		return true;
	reader->frames = frames_new(bytes);
	reader->share = calloc(reader->streams, sizeof(*reader->share));
	if (!reader->frames || !reader->share)
		return false;
	for (unsigned i = 0; i < reader->streams; i++)
		if (!(reader->share[i] = frames_share(reader->frames)))
			return false;
	return true;
}

static bool allocate(struct reader *reader, const struct reader_options *options)
{
	bool files = files_init(&reader->files, options->files, options->indexes_bytes);

	reader->read = calloc(reader->reads, sizeof(*reader->read));
	reader->hang = calloc(reader->streams, sizeof(*reader->hang));
	if (!files || !reader->read || !reader->hang ||
		!allocate_frames(reader, options->frames_bytes) || !allocate_staging(reader))
		return false;
	for (unsigned i = 0; i < reader->reads; i++) {
		struct read *read = &reader->read[i];

		read->reader = reader;
		read->stored = i >= reader->depth;
		STAILQ_INSERT_TAIL(
			read->stored ? &reader->unused_stored : &reader->unused, read, link);
	}
	return true;
}

static void release(struct reader *reader)
{
	if (reader->staging)
		munmap(reader->staging, reader->staging_bytes);
	files_free(&reader->files);
	for (unsigned i = 0; reader->share && i < reader->streams; i++)
		frames_free(reader->share[i]);
	frames_free(reader->frames);
	free(reader->share);
	free(reader->hang);
	free(reader->read);
	free(reader);
}

/* NULL: @fault, as of io_new(). */
static struct reader *reader_make(
	bool ring, const struct reader_options *options, struct fault *fault)
{
	assert(options->depth >= 1);
	assert(options->stores || options->store_depth == 0);
	struct reader *reader = calloc(1, sizeof(*reader));

	if (!reader) {
		io_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	reader->direct = options->direct;
	reader->files.log = options->log;
	reader->depth = options->depth;
	reader->reads = options->depth + options->store_depth;
	reader->stores = options->stores;
	reader->streams = options->streams ? options->streams : 1;
	reader->staging_each = staging_of(options->direct, options->largest_window_bytes);
	STAILQ_INIT(&reader->unused);
	STAILQ_INIT(&reader->unused_stored);
	STAILQ_INIT(&reader->ended);
	STAILQ_INIT(&reader->finished);
	if (!allocate(reader, options))
		io_fault(fault, ENOMEM, "memory");
	else
		reader->io = io_new(reader->reads, ring, fault);
	if (reader->io)
		return reader;
	release(reader);
	return NULL;
}

static void note_fallback(const struct fault *fault, char *note, size_t note_bytes)
{
	int error = fault->error;
	bool forbidden = error == EPERM || error == EACCES || error == ENOSYS;

	snprintf(note, note_bytes, "io_uring %s here (%s); reading with a pool of threads",
		forbidden ? "is forbidden" : "cannot be used",
		forbidden ? strerrorname_np(error) : fault->text);
}

struct reader *reader_open(
	const struct reader_options *options, char *note, size_t note_bytes, struct fault *fault)
{
	struct reader *reader = NULL;
	struct fault why;

	snprintf(note, note_bytes, "%s", "");
	if (options->io != CONFIG_IO_PREAD)
		reader = reader_make(true, options, &why);
	if (!reader && options->io == CONFIG_IO_URING) {
		fault_errno(fault, why.error, "io",
			"io: uring: %s (%s); allow io_uring in the container's seccomp profile and "
			"in kernel.io_uring_disabled, or set io: auto",
			why.text, strerror(why.error));
		return NULL;
	}
	if (reader)
		return reader;
	if (options->io != CONFIG_IO_PREAD)
		note_fallback(&why, note, note_bytes);
	reader = reader_make(false, options, &why);
	if (!reader)
		fault_errno(fault, why.error, "io", "pread cannot be used: %s (%s)", why.text,
			strerror(why.error));
	return reader;
}

/* Threads that wait look whether their reads are over. */
static void wake_waiting(struct reader *reader)
{
	pthread_mutex_lock(&reader->files.mutex);
	pthread_cond_broadcast(&reader->files.changed);
	pthread_mutex_unlock(&reader->files.mutex);
}

void reader_close(struct reader *reader)
{
	struct reader_done done[BATCH];

	if (!reader)
		return;
	reader_commit(reader);
	atomic_store(&reader->closing, true);
	wake_waiting(reader);
	while (reader->in_flight > 0)
		reader_reap(reader, done, BATCH, 1000);
	io_free(reader->io);
	release(reader);
}

const char *reader_name(const struct reader *reader)
{
	return io_name(reader->io);
}

/* ---- in ---- */

void reader_queue(struct reader *reader, const struct reader_read *window)
{
	bool stored = window->dataset->bucket != NULL;
	struct reads *unused = stored ? &reader->unused_stored : &reader->unused;
	struct read *read = STAILQ_FIRST(unused);

	assert(read && read->state == READ_FREE && !read->file);
	assert(window->tokens > 0 && window->stream < reader->streams);
	assert(stored || !reader->direct ||
		window_bytes(window) + 2 * IO_ALIGN <= reader->staging_each);
	STAILQ_REMOVE_HEAD(unused, link);
	reader->in_flight++;
	read->window = *window;
	read->number = reader->queued++;
	read->fault.code = FAULT_NONE;
	atomic_store_explicit(&read->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&read->ticks, 0, memory_order_relaxed);
	if (!fast_begin(reader, read))
		fast_give_up(reader, read);
}

void reader_commit(struct reader *reader)
{
	io_commit(reader->io);
}

void reader_allow(struct reader *reader, uint32_t session)
{
	if (reader->stores)
		store_allow(reader->stores, session);
}

void reader_cancel(struct reader *reader, uint32_t session)
{
	if (!reader->stores)
		return;
	for (unsigned i = reader->depth; i < reader->reads; i++)
		if (reader->read[i].window.session == session)
			atomic_store(&reader->read[i].cancelled, true);
	store_cancel(reader->stores, session);
	wake_waiting(reader);
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
		assert(read->state == READ_DONE && !read->file);
		STAILQ_REMOVE_HEAD(&reader->finished, link);
		read->state = READ_FREE;
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

/* True: reader_reap() should return, because reads have finished or there was a kick. */
static bool reader_turn(struct reader *reader, int64_t deadline_ns)
{
	struct io_work *works[BATCH];
	bool kicked;
	unsigned count = io_reap(reader->io, works, BATCH, deadline_ns, &kicked);

	for (unsigned i = 0; i < count; i++)
		works[i]->done(reader, works[i]);
	reader->turn++;
	fast_look(reader);
	io_commit(reader->io);
	return kicked || !STAILQ_EMPTY(&reader->finished);
}

unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms)
{
	assert(max >= 1 && timeout_ms >= 0);
	bool look = reader_turn(reader, 0);

	if (!look && timeout_ms > 0) {
		int64_t deadline_ns = io_now_ns() + timeout_ms * INT64_C(1000000);

		while (!look && io_now_ns() < deadline_ns)
			look = reader_turn(reader, deadline_ns);
	}
	return take_finished(reader, done, max);
}

void reader_kick(struct reader *reader)
{
	io_kick(reader->io);
}

/* ---- what is in flight ---- */

static bool is_busy(const struct read *read)
{
	return read->state != READ_FREE && read->state != READ_DONE;
}

bool reader_busy(const struct reader *reader, struct reader_hang *which)
{
	*which = (struct reader_hang){0};
	for (unsigned i = 0; i < reader->depth; i++) {
		const struct read *read = &reader->read[i];

		if (is_busy(read)) {
			*which = (struct reader_hang){0, read->window.dataset, read->window.shard};
			return true;
		}
	}
	return false;
}

static void read_check(const struct reader *reader, const struct read *read)
{
	bool fast = read->state == READ_READING || read->state == READ_ENDED;

	assert(fast == (read->file != NULL));
	assert(read->state == READ_FREE || read->window.stream < reader->streams);
	assert(!fast || (read->file->dataset == read->window.dataset &&
				read->file->number == read->window.shard));
}

void reader_tick(struct reader *reader)
{
	unsigned used = 0;

	memset(reader->hang, 0, reader->streams * sizeof(*reader->hang));
	for (unsigned i = 0; i < reader->reads; i++) {
		struct read *read = &reader->read[i];

		read_check(reader, read);
		used += read->state != READ_FREE;
		/* A read that waits for a store is not slow storage: see store_waits(). */
		if (read->stored || !is_busy(read))
			continue;
		struct reader_hang *hang = &reader->hang[read->window.stream];
		unsigned ticks = atomic_fetch_add(&read->ticks, 1) + 1;

		if (ticks > SLOW_TICKS && ticks > hang->ticks)
			*hang = (struct reader_hang){
				ticks, read->window.dataset, read->window.shard};
	}
	assert(used == reader->in_flight && used <= reader->reads);
	files_tick(&reader->files);
}

struct reader_hang reader_hang(const struct reader *reader, uint32_t stream)
{
	assert(stream < reader->streams);
	return reader->hang[stream];
}
