#include "daemon/reader/cancel.h"

#include "daemon/reader/end.h"
#include "daemon/reader/open.h"
#include "daemon/store/store.h"

#include <assert.h>

void openings_cancel(struct reader *reader)
{
	for (unsigned i = 0; reader->openings > 0 && i < reader->files.count; i++) {
		struct file *file = &reader->files.file[i];

		if (file->held && STAILQ_EMPTY(&file->waiting))
			opening_cancel(reader, file);
	}
}

static void cancel_parked(struct reader *reader, struct read *read)
{
	struct share *share = share_of(reader, read);

	STAILQ_REMOVE(&share->parked, read, read, link);
	if (STAILQ_EMPTY(&share->parked))
		TAILQ_REMOVE(&reader->shares.waiting, share, waiting);
	read_cancelled(reader, read);
}

/* The opening goes on for the other reads. */
static void cancel_opening(struct reader *reader, struct read *read)
{
	struct file *file = read->file;

	STAILQ_REMOVE(&file->waiting, read, read, link);
	read_cancelled(reader, read);
	if (STAILQ_EMPTY(&file->waiting))
		opening_cancel(reader, file);
}

static void cancel(struct reader *reader, struct read *read)
{
	read->cancelled = true;
	switch (read->state) {
	case READ_PARKED:
		cancel_parked(reader, read);
		break;
	case READ_OPENING:
		cancel_opening(reader, read);
		break;
	case READ_DECODING:
		if (reader->ops->withdraw(reader->backend, &read->work))
			read_cancelled(reader, read);
		break; /* otherwise the store ends the call */
	case READ_AGAIN:
		STAILQ_REMOVE(&reader->paused, read, read, link);
		read_cancelled(reader, read);
		break;
	default:
		break; /* it ends by itself, or the store returns it */
	}
}

void reader_cancel(struct reader *reader, uint32_t session)
{
	if (!reader->stores)
		return;
	store_cancel(reader->stores, session);
	for (unsigned i = reader->depth; i < reader->reads; i++) {
		struct read *read = &reader->read[i];

		if (read->window.session == session && read->state != READ_FREE &&
			read->state != READ_DONE)
			cancel(reader, read);
	}
}

void reader_allow(struct reader *reader, uint32_t session)
{
	if (reader->stores)
		store_allow(reader->stores, session);
}
