#include "daemon/reader/state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

enum { TRIES = 1000 }; /* so many EINTR or EAGAIN in a row are an error */

#define TO(state) (1u << (state))

const unsigned read_moves[READ_STATES] = {
	[READ_FREE] = TO(READ_PARKED) | TO(READ_OPENING) | TO(READ_FOUND) | TO(READ_READING) |
		      TO(READ_DECODING),
	[READ_PARKED] = TO(READ_OPENING) | TO(READ_FOUND) | TO(READ_READING) | TO(READ_DECODING) |
			TO(READ_DONE),
	[READ_OPENING] = TO(READ_FOUND) | TO(READ_READING) | TO(READ_DECODING) | TO(READ_AGAIN) |
			 TO(READ_DONE),
	[READ_FOUND] = TO(READ_READING) | TO(READ_DECODING) | TO(READ_ENDED) | TO(READ_AGAIN) |
		       TO(READ_DONE),
	/* To itself: a short read is continued, an interrupted one is repeated. */
	[READ_READING] = TO(READ_READING) | TO(READ_DECODING) | TO(READ_ENDED) | TO(READ_AGAIN) |
			 TO(READ_DONE),
	[READ_DECODING] = TO(READ_DECODING) | TO(READ_ENDED) | TO(READ_AGAIN) | TO(READ_DONE),
	[READ_ENDED] = TO(READ_AGAIN) | TO(READ_DONE),
	[READ_AGAIN] = TO(READ_PARKED) | TO(READ_OPENING) | TO(READ_FOUND) | TO(READ_READING) |
		       TO(READ_DECODING) | TO(READ_DONE),
	[READ_DONE] = TO(READ_FREE),
};

uint64_t staging_each(bool direct, uint64_t largest_window_bytes)
{
	uint64_t align = IO_ALIGN;

	/* A window may begin and end inside a block. */
	return direct ? (largest_window_bytes + align - 1) / align * align + 2 * align : 0;
}

bool reader_fault(struct fault *fault, int error, const char *text)
{
	assert(error > 0);
	fault_errno(fault, error, "", "%s", text);
	if (error == EBADMSG || error == ERANGE)
		fault->code = FAULT_DATA;
	return false;
}

bool may_repeat(int error, unsigned *tries)
{
	return (error == EINTR || error == EAGAIN) && ++*tries < TRIES;
}

void reader_note_buffered(struct reader *reader, struct file *file)
{
	assert(reader->direct);
	file->direct = false;
	if (!reader->notes[0])
		snprintf(reader->notes, sizeof(reader->notes),
			"direct: %.900s: its file system refuses O_DIRECT; shards there are read "
			"through the page cache",
			file->path);
}

/* ---- invariants ---- */

static bool has_file(const struct read *read)
{
	if (read->stored && read->state == READ_DECODING)
		return read->file; /* or none */
	return read->state >= READ_OPENING && read->state <= READ_ENDED;
}

static void read_check(const struct reader *reader, const struct read *read)
{
	const struct file *file = read->file;

	assert(read->state < READ_STATES);
	assert(has_file(read) == (file != NULL));
	if (read->state == READ_FREE)
		return;
	assert(read->window.stream < reader->shares.count && read->window.tokens > 0);
	assert(!read->stored || read->state != READ_ENDED);
	assert(read->stored || !read->cancelled);
	/* Only the last steps set a fault. */
	assert(read->state >= READ_DECODING || read->fault.code == FAULT_NONE);
	if (!file)
		return;
	assert(file->users > 0);
	assert(file->dataset == read->window.dataset && file->number == read->window.shard);
	assert(file->stored == read->stored);
	assert((read->state == READ_OPENING) == (file->state != FILE_OPEN));
	if (read->state == READ_READING)
		assert((file->plain || file->nowait) && read->skip < IO_ALIGN &&
			(!read->staged || read->staging));
	if (read->state == READ_FOUND)
		assert(file->shard && !file->plain && file->nowait);
}

/* @users: how many reads use it. */
static void file_check(const struct reader *reader, const struct file *file, unsigned users)
{
	assert(file->users == users + file->held);
	assert(!file->held || (file->stored && file->state == FILE_OPENING));
	assert(file->state != FILE_OPENING || file->users > 0);
	assert(file->held || (file->state == FILE_OPENING) == !STAILQ_EMPTY(&file->waiting));
	/* A file whose descriptor was taken, because there was no other, is not known. */
	assert(file->state != FILE_OPEN || file->stored || file->fd >= 0 ||
		(!file->known && users == 0));
	assert(!file->direct || reader->direct);
	/* There is one look at a time, and a read that needs it. */
	assert(!(file->watch.queued && file->watch.in_flight));
	assert(file->watch.in_flight == !STAILQ_EMPTY(&file->watch.held));
	assert(STAILQ_EMPTY(&file->watch.ended) || file->watch.queued || file->watch.in_flight);
	assert(users > 0 || !(file->watch.queued || file->watch.in_flight));
	assert(file->users == 0 || (file->share && file->in_use == &file->share->files));
	/* Only while it is opened does a file own indexes of other files. */
	assert(file->state == FILE_OPENING || (!file->stripped && file->reserved == 0));
}

static void files_check(const struct reader *reader)
{
	uint64_t indexes = 0, reserved = 0;

	for (unsigned i = 0; i < reader->files.count; i++) {
		const struct file *file = &reader->files.file[i];
		unsigned users = 0;

		for (unsigned r = 0; file->users > 0 && r < reader->reads; r++)
			users += reader->read[r].file == file;
		file_check(reader, file, users);
		reserved += file->reserved;
		/* While it is opened, a thread of the pool may be reading its index. */
		if (file->state != FILE_OPENING && file->shard)
			indexes += file->shard->facts.index_bytes;
	}
	assert(reader->reserved == reserved && reserved <= reader->indexes_most / 4);
	assert(reader->indexes_bytes == indexes + reserved);
}

static void shares_check(const struct reader *reader)
{
	unsigned slow = 0, in_use = 0, used = 0;

	for (unsigned i = 0; i < reader->shares.count; i++) {
		const struct share *share = &reader->shares.share[i];

		assert((share->frames != NULL) == (reader->frames != NULL));
		assert(share->slow == (share->hang.ticks > SHARE_TICKS));
		slow += share->slow;
		in_use += share->files;
	}
	for (unsigned i = 0; i < reader->files.count; i++)
		used += reader->files.file[i].users > 0;
	assert(reader->shares.slow == slow);
	assert(in_use == used && in_use <= reader->files.count);
}

void reader_check(const struct reader *reader)
{
	unsigned count[READ_STATES] = {0}, unused = 0, done = 0, paused = 0;
	const struct read *read;

	for (unsigned i = 0; i < reader->reads; i++) {
		read_check(reader, &reader->read[i]);
		count[reader->read[i].state]++;
	}
	STAILQ_FOREACH(read, &reader->unused, link)
	unused++;
	STAILQ_FOREACH(read, &reader->unused_stored, link)
	unused++;
	STAILQ_FOREACH(read, &reader->finished, link)
	done++;
	STAILQ_FOREACH(read, &reader->paused, link)
	paused++;
	assert(count[READ_FREE] == unused && count[READ_DONE] == done);
	assert(reader->in_flight == reader->reads - unused && reader->in_flight <= reader->reads);
	assert((count[READ_FOUND] > 0) == !STAILQ_EMPTY(&reader->found));
	/* Without a pause, a read begins again in the turn in which it failed. */
	assert(count[READ_AGAIN] == paused && STAILQ_EMPTY(&reader->again));
	assert((count[READ_PARKED] > 0) == !TAILQ_EMPTY(&reader->shares.waiting));
	files_check(reader);
	shares_check(reader);
}

void reader_check_idle(const struct reader *reader)
{
	assert(STAILQ_EMPTY(&reader->again));
	if (reader->in_flight > 0 || reader->openings > 0)
		return;
	assert(STAILQ_EMPTY(&reader->found) && STAILQ_EMPTY(&reader->finished));
	assert(STAILQ_EMPTY(&reader->watched) && TAILQ_EMPTY(&reader->shares.waiting));
	assert(reader->reserved == 0);
}
