/*
 * The fast path: the data thread, without waiting. A window of an open plain shard is read straight
 * into the slot, at most TRANSFER_MOST at a time; short reads are continued. With O_DIRECT whole
 * blocks go to staging, and the window is copied from there. So do windows that other shards store
 * as they are served, but never with O_DIRECT. Of other windows, those that are in memory are
 * decoded into the slot.
 *
 * A read that meets anything else is passed to the slow path, which does all of it again, and words
 * the faults.
 */
#include "daemon/reader/internal.h"

#include <assert.h>
#include <string.h>

/* One read of cached bytes keeps the data thread from all feeds. */
enum { TRANSFER_MOST = 512 << 10 };

static void move(struct read *read, enum read_state to, struct reads *list)
{
	read->state = to;
	if (list)
		STAILQ_INSERT_TAIL(list, read, link);
}

static void leave_file(struct reader *reader, struct read *read)
{
	if (read->file)
		files_put(&reader->files, read->file);
	read->file = NULL;
}

/* ---- to the slow path ---- */

static void slow_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct read *read = read_of(work);

	assert(read->state == READ_SLOW && !read->file);
	assert((work->result == 0) == (read->fault.code == FAULT_NONE));
	move(read, READ_DONE, &reader->finished);
}

void fast_give_up(struct reader *reader, struct read *read)
{
	leave_file(reader, read);
	move(read, READ_SLOW, NULL);
	read->fault.code = FAULT_NONE;
	read->work = (struct io_work){.call = slow_read, .done = slow_done, .fd = -1};
	io_submit(reader->io, &read->work);
}

/* ---- bytes ---- */

static void transfer_done(void *owner, struct io_work *work);

/* The window's tokens are in the slot. */
static void check(struct reader *reader, struct read *read)
{
	if (tokens_pass(&read->window) &&
		annotations_write(&read->window, read->file->shard, &read->fault))
		move(read, READ_ENDED, &reader->ended);
	else
		fast_give_up(reader, read);
}

/* The end of the window, counted from read->start as `have` is. */
static uint64_t window_end(const struct read *read)
{
	return read->skip + window_bytes(&read->window);
}

/* Reads the missing bytes. With O_DIRECT it begins with the sector where the last read stopped. */
static void transfer_continue(struct reader *reader, struct read *read)
{
	const struct file *file = read->file;
	char *to = read->staged ? read->staging : read->window.to;
	uint64_t from = read->have, end = window_end(read);

	assert(from < end);
	if (read->staged) {
		from = from / IO_SECTOR * IO_SECTOR;
		end = (end + file->align - 1) / file->align * file->align;
		assert(end <= reader->staging_each);
	}
	move(read, READ_READING, NULL);
	read->work = (struct io_work){
		.done = transfer_done,
		.fd = file->fd,
		.nowait = true,
		.direct = read->staged,
		.to = to + from,
		.bytes = end - from < TRANSFER_MOST ? end - from : TRANSFER_MOST,
		.at = read->start + from,
	};
	io_submit(reader->io, &read->work);
}

/* Reads the window, which begins at byte @from of the file. */
static void transfer_start(struct reader *reader, struct read *read, uint64_t from)
{
	read->staged = atomic_load_explicit(&read->file->direct, memory_order_relaxed);
	read->skip = read->staged ? from % read->file->align : 0;
	read->start = from - read->skip;
	read->have = 0;
	transfer_continue(reader, read);
}

static void transfer_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct read *read = read_of(work);
	uint64_t had = read->have, end = window_end(read);

	assert(read->state == READ_READING);
	if (work->result > 0)
		read->have = work->at - read->start + (uint64_t)work->result;
	if (work->result <= 0 || read->have <= had) {
		fast_give_up(reader, read);
		return;
	}
	if (read->have < end) {
		transfer_continue(reader, read);
		return;
	}
	if (read->staged)
		memcpy(read->window.to, read->staging + read->skip, end - read->skip);
	check(reader, read);
}

/* ---- reads ---- */

static bool is_fast(const struct read *read, const struct file *file)
{
	return file->nowait && !read->by_name && !(read->stored && file->plain) &&
	       !annotations_in_files(read->window.dataset, file->shard);
}

/* Is it this read that looks by name? */
static bool takes_look(struct file *file)
{
	return atomic_load_explicit(&file->due, memory_order_relaxed) &&
	       atomic_exchange(&file->due, false);
}

bool fast_begin(struct reader *reader, struct read *read)
{
	const struct reader_read *window = &read->window;
	struct file *file = files_get(&reader->files, window->dataset, window->shard);
	uint64_t byte = SHARD_UNKNOWN;

	assert(read->state == READ_FREE && !read->file);
	read->file = file;
	read->by_name = file && takes_look(file);
	if (!file)
		return false;
	if (!is_fast(read, file)) {
		leave_file(reader, read);
		return false;
	}
	if (file->plain)
		transfer_start(
			reader, read, file->data_at + window->token * window->dataset->token_bytes);
	else if (!shard_try(file->shard, window->token, window->tokens, window->to,
			 read->stored ? NULL : &byte))
		fast_give_up(reader, read);
	else if (byte != SHARD_UNKNOWN)
		transfer_start(reader, read, byte);
	else
		check(reader, read);
	return true;
}

/* All reads of a file that ended in the same turn share a look. */
void fast_look(struct reader *reader)
{
	struct fault fault;
	struct read *read;

	while ((read = STAILQ_FIRST(&reader->ended))) {
		struct file *file = read->file;

		STAILQ_REMOVE_HEAD(&reader->ended, link);
		if (file->looked != reader->turn)
			file->same = look_again(file, &fault);
		file->looked = reader->turn;
		if (!file->same) {
			fast_give_up(reader, read);
			continue;
		}
		leave_file(reader, read);
		move(read, READ_DONE, &reader->finished);
	}
}
