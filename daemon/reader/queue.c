#include "daemon/reader/queue.h"

#include "daemon/reader/open.h"
#include "daemon/reader/read.h"

#include <assert.h>

/* False: there is no room in the table. */
static bool read_place(struct reader *reader, struct read *read)
{
	struct share *share = share_of(reader, read);
	struct file *file = files_get(&reader->files, read->window.dataset, read->window.shard,
		&share->files, share_files_most(&reader->shares, share, &reader->files));

	if (!file)
		return false;
	file->share = share;
	read->file = file;
	if (file->state == FILE_OPEN) {
		read_start(reader, read);
		return true;
	}
	read_push(read, READ_OPENING, &file->waiting);
	if (file->state == FILE_CLOSED)
		file_begin(reader, file);
	return true;
}

/* Is it of a plain shard, which need not be opened? If it is in the table, it may be being opened
 * now, and only that thread knows. */
static bool needs_no_file(const struct reader *reader, const struct reader_read *window)
{
	const struct dataset *d = window->dataset;

	return !d->marked && !files_known(&reader->files, d, window->shard) &&
	       dataset_is_plain(d, window->shard);
}

/* No read overtakes parked reads of its stream. Otherwise reads of files that are always in use
 * could keep them waiting forever. */
void reader_admit(struct reader *reader, struct read *read)
{
	struct share *share = share_of(reader, read);
	bool first = STAILQ_EMPTY(&share->parked);

	assert(!read->file && read->fault.code == FAULT_NONE);
	if (read->stored && needs_no_file(reader, &read->window)) {
		fetch_start(reader, read);
		return;
	}
	if (first && read_place(reader, read))
		return;
	if (first)
		TAILQ_INSERT_TAIL(&reader->shares.waiting, share, waiting);
	read_push(read, READ_PARKED, &share->parked);
}

void reader_admit_again(struct reader *reader)
{
	struct read *read;

	while ((read = reads_take(&reader->again)))
		reader_admit(reader, read);
}

/* True: no read is parked any more. */
static bool share_unpark(struct reader *reader, struct share *share)
{
	struct read *read;

	while ((read = STAILQ_FIRST(&share->parked))) {
		assert(read->state == READ_PARKED);
		STAILQ_REMOVE_HEAD(&share->parked, link);
		if (read_place(reader, read))
			continue;
		STAILQ_INSERT_HEAD(&share->parked, read, link);
		return false;
	}
	return true;
}

void reader_unpark(struct reader *reader)
{
	struct share *share = TAILQ_FIRST(&reader->shares.waiting), *next;

	for (; share; share = next) {
		next = TAILQ_NEXT(share, waiting);
		if (share_unpark(reader, share))
			TAILQ_REMOVE(&reader->shares.waiting, share, waiting);
	}
	/* Next time, another share is admitted first. */
	if ((share = TAILQ_FIRST(&reader->shares.waiting))) {
		TAILQ_REMOVE(&reader->shares.waiting, share, waiting);
		TAILQ_INSERT_TAIL(&reader->shares.waiting, share, waiting);
	}
}
