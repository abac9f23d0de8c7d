/*
 * Moving a read's bytes from an open file into the slot.
 *
 * Plain shards: the backend reads the window's bytes straight into the slot (READING), at most
 * TRANSFER_MOST at a time; short reads are continued. With O_DIRECT it reads whole blocks into
 * staging, and the window is copied from there.
 *
 * Plain shards in a store: a thread of the pool reads the window from there (DECODING).
 *
 * Other shards: the data thread first finds where all queued windows begin (FOUND). Windows that
 * are contiguous in the file, in the served width, are read as those of plain shards (READING), but
 * never with O_DIRECT. If such a read fails, the pool makes it again, because shard_read() words
 * the fault. Of the others, the data thread decodes those that are in memory, into the slot. The
 * rest go to a thread of the pool (DECODING), and so do reads with tokens that may not be served,
 * or with annotations from files.
 *
 * Afterwards the read is held until its file was looked at (end.h).
 */
#include "daemon/reader/read.h"

#include "daemon/reader/decode.h"
#include "daemon/reader/end.h"
#include "daemon/reader/recheck.h"
#include "daemon/store/store.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum {
	/* One read of cached bytes keeps the data thread from all feeds. */
	TRANSFER_MOST = 512 << 10,
};

static struct read *read_of(struct io_work *work)
{
	return (struct read *)((char *)work - offsetof(struct read, work));
}

uint64_t window_bytes(const struct reader_read *window)
{
	return window->tokens * window->dataset->token_bytes;
}

/* ---- in the pool ---- */

static void decode_done(void *owner, struct io_work *work);

static void decode_start(
	struct reader *reader, struct read *read, int64_t (*call)(struct io_work *work))
{
	read_move(read, READ_DECODING);
	read->work = (struct io_work){.call = call, .done = decode_done, .fd = -1};
	reader_submit(reader, &read->work, share_of(reader, read), read->stored);
}

/* Reads with a fault of the contents are held, too: the look may show that the file changed. */
static void read_failed(struct reader *reader, struct read *read)
{
	const struct fault *fault = &read->fault;

	if (fault->code == FAULT_DATA || fault->code == FAULT_TOKEN) {
		read_hold(reader, read);
		return;
	}
	if (fault->error == ESTALE)
		files_forget(read->file);
	read_fail(reader, read);
}

/* The error of the fault. A frame may be decoded for several sessions at once, and on behalf of one
 * that leaves: the others try again. */
static int again(const struct read *read)
{
	bool of_others = read->stored && !read->cancelled && read->fault.error == ECANCELED;

	return of_others ? EINTR : read->fault.error;
}

static void decode_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct read *read = read_of(work);

	if (work->result == 0) {
		/* A fault may be left from a frame that was good when it was read again. */
		read->fault.code = FAULT_NONE;
		read_hold(reader, read);
	} else if (may_repeat(again(read), &read->tries)) {
		read->fault.code = FAULT_NONE;
		read_move(read, READ_DECODING);
		reader_submit(reader, work, share_of(reader, read), read->stored);
	} else {
		read_failed(reader, read);
	}
}

/* ---- by the data thread ---- */

/* For tokens that have been read, if no annotations come from files. */
static void read_annotate(struct reader *reader, struct read *read)
{
	if (decode_annotations(read))
		read_hold(reader, read);
	else
		read_fail(reader, read);
}

/* After the bytes of a window. */
static void read_check_tokens(struct reader *reader, struct read *read)
{
	if (decode_needs_files(read) || !recheck_passes(&read->window)) {
		if (read->cancelled) {
			read_cancelled(reader, read);
			return;
		}
		read->tries = 0;
		decode_start(reader, read, decode_check);
	} else {
		read_annotate(reader, read);
	}
}

/* ---- bytes of files ---- */

static void transfer_done(void *owner, struct io_work *work);

/* The end of the window, counted from read->start as `have` is. */
static uint64_t window_end(const struct read *read)
{
	return read->skip + window_bytes(&read->window);
}

/*
 * Reads the missing bytes. With O_DIRECT it begins with the sector in which the last read stopped:
 * at the end of the file it makes no progress, at a damaged sector it gets the error.
 */
static void transfer_continue(struct reader *reader, struct read *read)
{
	char *to = read->staged ? read->staging : read->window.to;
	uint64_t from = read->have, end = window_end(read);

	assert(from < end);
	if (read->staged) {
		from = from / IO_SECTOR * IO_SECTOR;
		end = (end + read->file->align - 1) / read->file->align * read->file->align;
		assert(end <= staging_each(true, reader->largest_window_bytes));
	}
	read_move(read, READ_READING);
	read->work = (struct io_work){
		.done = transfer_done,
		.fd = read->file->fd,
		.nowait = read->file->nowait,
		.direct = read->staged,
		.to = to + from,
		.bytes = end - from < TRANSFER_MOST ? end - from : TRANSFER_MOST,
		.at = read->start + from,
	};
	reader_submit(reader, &read->work, share_of(reader, read), false);
}

/* Reads the window, which begins at byte @from of the file. */
static void transfer_start(struct reader *reader, struct read *read, uint64_t from)
{
	read->start = from;
	read->staged = read->file->direct;
	read->skip = read->staged ? read->start % read->file->align : 0;
	read->start -= read->skip;
	read->have = 0;
	read->tries = 0;
	transfer_continue(reader, read);
}

static void transfer_failed(struct reader *reader, struct read *read, int error)
{
	struct file *file = read->file;

	if (may_repeat(error, &read->tries)) {
		transfer_continue(reader, read);
		return;
	}
	if (error == EINVAL && read->staged) {
		/* open() accepted O_DIRECT, but the file system needs a coarser alignment. */
		fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_DIRECT);
		reader_note_buffered(reader, file);
		transfer_start(reader, read, read->start + read->skip);
		return;
	}
	reader_fault(&read->fault, error, strerror(error));
	read_failed(reader, read);
}

static void transfer_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;
	struct read *read = read_of(work);
	uint64_t had = read->have, end = window_end(read);

	if (work->result <= 0 && !read->file->plain) {
		read->tries = 0;
		decode_start(reader, read, decode_read);
		return;
	}
	if (work->result < 0) {
		transfer_failed(reader, read, (int)-work->result);
		return;
	}
	assert((uint64_t)work->result <= work->bytes);
	read->have = work->at - read->start + (uint64_t)work->result;
	read->tries = 0;
	if (read->have < end && read->have > had) {
		transfer_continue(reader, read);
		return;
	}
	if (read->have < end) {
		fault_set(&read->fault, FAULT_DATA, "",
			"ends before this window: it was truncated; " PHRASE_RESTORE);
		read_hold(reader, read);
		return;
	}
	if (read->staged)
		memcpy(read->window.to, read->staging + read->skip, end - read->skip);
	read_check_tokens(reader, read);
}

/* ---- plain shards in stores ---- */

void fetch_start(struct reader *reader, struct read *read)
{
	read->tries = 0;
	decode_start(reader, read, decode_fetch);
}

/* ---- all shards ---- */

void reader_try_found(struct reader *reader)
{
	struct read *read;

	/* No system call between two of them, so that their cache misses overlap. */
	while ((read = reads_take(&reader->found))) {
		if (decode_as_is(read)) {
			transfer_start(reader, read, read->place.byte);
			continue;
		}
		if (decode_try(read)) {
			read_annotate(reader, read);
			continue;
		}
		if (read->cancelled) {
			read_cancelled(reader, read);
			continue;
		}
		read->tries = 0;
		decode_start(reader, read, decode_read);
	}
}

void read_start(struct reader *reader, struct read *read)
{
	const struct file *file = read->file;

	assert(file->state == FILE_OPEN && (file->fd >= 0 || file->stored));
	if (file->plain && file->stored) {
		fetch_start(reader, read);
		return;
	}
	if (file->plain) {
		transfer_start(reader, read,
			file->data_at + read->window.token * read->window.dataset->token_bytes);
		return;
	}
	read->staged = false;
	read->tries = 0;
	if (file->nowait && !decode_needs_files(read)) {
		read->place = shard_find(file->shard, read->window.token, read->window.tokens);
		read_push(read, READ_FOUND, &reader->found);
	} else {
		decode_start(reader, read, decode_read);
	}
}
