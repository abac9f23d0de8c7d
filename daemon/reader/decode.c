#include "daemon/reader/decode.h"

#include "daemon/reader/annotations.h"
#include "daemon/reader/recheck.h"
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>

static struct read *read_of(struct io_work *work)
{
	return (struct read *)((char *)work - offsetof(struct read, work));
}

/* NULL: a plain shard that needs none. */
static const struct shard *shard_of(const struct read *read)
{
	return read->file ? read->file->shard : NULL;
}

bool decode_needs_files(const struct read *read)
{
	return annotations_in_files(read->window.dataset, shard_of(read));
}

bool decode_as_is(const struct read *read)
{
	return !read->stored && shard_as_is(read->file->shard, &read->place, read->window.tokens);
}

bool decode_try(struct read *read)
{
	const struct reader_read *window = &read->window;

	assert(read->file->shard && read->file->nowait);
	return shard_try(read->file->shard, read->place, window->tokens, window->to) &&
	       recheck_passes(window);
}

bool decode_annotations(struct read *read)
{
	const struct reader_read *window = &read->window;

	return annotations_write(window->dataset, shard_of(read), window->token, window->tokens,
		window->to, &window->annotations, &read->fault);
}

static bool read_tokens(struct read *read)
{
	const struct reader_read *window = &read->window;

	return shard_read(
		read->file->shard, window->token, window->tokens, window->to, &read->fault);
}

/* In the pool: reads of the store are the session's from here on. */
static void begin(const struct read *read)
{
	assert(read->state == READ_DECODING && read->fault.code == FAULT_NONE);
	if (read->stored)
		store_on_behalf(read->window.session);
}

static bool check(struct read *read)
{
	return (recheck_passes(&read->window) ||
		       recheck_read(read->file, &read->window, &read->fault)) &&
	       decode_annotations(read);
}

int64_t decode_check(struct io_work *work)
{
	struct read *read = read_of(work);

	begin(read);
	return check(read) ? 0 : -1;
}

int64_t decode_fetch(struct io_work *work)
{
	struct read *read = read_of(work);
	const struct reader_read *window = &read->window;
	const struct dataset *d = window->dataset;
	uint64_t data_at = read->file ? read->file->data_at : dataset_data_at(d, window->shard);
	struct object object;

	begin(read);
	dataset_object(d, window->shard, &object);
	if (d->config->shuffle == ORDER_NONE)
		object.block = STORE_BLOCK_BYTES;
	return store_read(d->hint.objects->stores, &object,
		       data_at + window->token * d->token_bytes, window->to,
		       window->tokens * d->token_bytes, &read->fault) &&
			       check(read)
		       ? 0
		       : -1;
}

int64_t decode_read(struct io_work *work)
{
	struct read *read = read_of(work);

	begin(read);
	assert(read->file->shard && !read->file->plain);
	return read_tokens(read) && check(read) ? 0 : -1;
}
