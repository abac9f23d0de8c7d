/*
 * The fast path: the data thread, without waiting. A window of an open plain shard is read straight
 * into the slot, at most TRANSFER_MOST at a time; short reads are continued. So are windows that
 * other shards store as they are served. With O_DIRECT, which only plain shards use, whole blocks
 * go to staging, and the window is copied from there. Of other windows, those that are in memory
 * are decoded into the slot.
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
	uint64_t from = read->have, end = window_end(read);
	struct iovec to[2] = {{0}}, *next = to;

	assert(from < end);
	if (read->staged) {
		from = from / IO_SECTOR * IO_SECTOR;
		end = (end + file->align - 1) / file->align * file->align;
		assert(end <= reader->staging_each);
	}
	uint64_t n = end - from < TRANSFER_MOST ? end - from : TRANSFER_MOST, before = 0;

	if (read->staged) {
		*next = (struct iovec){read->staging + from, n};
	} else {
		if (from < read->skip) {
			before = read->skip - from;
			*next++ = (struct iovec){read->header + from, before};
		}
		*next = (struct iovec){
			(char *)read->window.to + from + before - read->skip, n - before};
	}
	move(read, READ_READING, NULL);
	read->work = (struct io_work){
		.done = transfer_done,
		.fd = file->fd,
		.nowait = true,
		.direct = read->staged,
		.to = {to[0], to[1]},
		.at = read->start + from,
	};
	io_submit(reader->io, &read->work);
}

/* Reads the window at read->place. */
static void transfer_start(struct reader *reader, struct read *read)
{
	uint64_t from = read->place.byte;

	read->staged = atomic_load_explicit(&read->file->direct, memory_order_relaxed);
	read->skip = read->staged ? from % read->file->align : read->place.header_bytes;
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
	if (memcmp(read->header, read->place.header, read->place.header_bytes) != 0) {
		fast_give_up(reader, read);
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

	assert(read->state == READ_FREE && !read->file);
	read->file = file;
	read->by_name = file && takes_look(file);
	if (!file)
		return false;
	if (!is_fast(read, file)) {
		leave_file(reader, read);
		return false;
	}
	read->place = (struct shard_place){
		.byte = file->data_at + window->token * window->dataset->token_bytes};
	if (file->plain)
		transfer_start(reader, read);
	else if (!shard_try(file->shard, window->token, window->tokens, window->to,
			 read->stored ? NULL : &read->place))
		fast_give_up(reader, read);
	else if (!read->stored && read->place.byte != SHARD_UNKNOWN)
		transfer_start(reader, read);
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
