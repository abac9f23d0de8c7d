#include "daemon/reader/recheck.h"

#include "daemon/catalog/vocab.h"
#include "daemon/reader/state.h"
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { SOME_BYTES = 32 * 1024 }; /* read at a time, onto the stack of a pool thread */

/* Private memory for some tokens; O_DIRECT reads whole blocks. */
struct some {
	_Alignas(IO_ALIGN) char bytes[SOME_BYTES + 2 * IO_ALIGN];
};

bool recheck_passes(const struct reader_read *read)
{
	return vocab_first_refused(read->dataset, read->to, read->tokens) == read->tokens;
}

/* Reads @n bytes at byte @at of a plain shard in a store into @some. */
static bool read_object(const struct reader_read *read, uint64_t at, uint64_t n, struct some *some,
	struct fault *fault)
{
	struct object object;

	dataset_object(read->dataset, read->shard, &object);
	return store_read(read->dataset->hint.objects->stores, &object, at, some->bytes, n, fault);
}

/* The same of a file. */
static bool read_plain(
	const struct file *file, uint64_t at, uint64_t n, struct some *some, struct fault *fault)
{
	uint64_t skip = file->direct ? at % IO_ALIGN : 0, have = 0;
	uint64_t want = file->direct ? (skip + n + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN : n;

	assert(want <= sizeof(some->bytes));
	while (have < skip + n) {
		/* O_DIRECT continues at a block. If it stops in that block again, the file ends
		 * there. */
		uint64_t from = file->direct ? have / IO_ALIGN * IO_ALIGN : have;
		ssize_t got =
			pread(file->fd, some->bytes + from, want - from, (off_t)(at - skip + from));

		if (got < 0 && errno == EINTR)
			continue;
		int error = got < 0 ? errno : EIO; /* EIO: the file became shorter */

		if (got <= 0 || from + (uint64_t)got <= have)
			return reader_fault(fault, error, strerror(error));
		have = from + (uint64_t)got;
	}
	memmove(some->bytes, some->bytes + skip, n);
	return true;
}

static bool read_some(const struct file *file, const struct reader_read *read, uint64_t done,
	uint64_t n, struct some *some, struct fault *fault)
{
	uint32_t width = read->dataset->token_bytes;
	uint64_t token = read->token + done;

	if (read->dataset->objects && (!file || file->plain))
		return read_object(read,
			(file ? file->data_at : dataset_data_at(read->dataset, read->shard)) +
				token * width,
			n * width, some, fault);
	if (file->plain)
		return read_plain(file, file->data_at + token * width, n * width, some, fault);
	return shard_read(file->shard, token, n, some->bytes, fault);
}

bool recheck_read(const struct file *file, const struct reader_read *read, struct fault *fault)
{
	const struct dataset *d = read->dataset;
	uint32_t width = d->token_bytes;
	struct some some;

	assert(!file || (file->state == FILE_OPEN && (file->plain || file->shard)));
	for (uint64_t done = 0, n; done < read->tokens; done += n) {
		n = read->tokens - done < SOME_BYTES / width ? read->tokens - done
							     : SOME_BYTES / width;
		if (!read_some(file, read, done, n, &some, fault))
			return false;
		uint64_t i = vocab_first_refused(d, some.bytes, n);

		if (i < n)
			return vocab_refuse(d, read->token + done + i, some.bytes, i, fault);
		memcpy((char *)read->to + done * width, some.bytes, n * width);
	}
	return true;
}
