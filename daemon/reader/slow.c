/* The slow path: one function in a thread of the pool does all of a read. */
#include "daemon/catalog/catalog.h"
#include "daemon/reader/internal.h"
#include "daemon/shard/format.h"
#include "daemon/store/store.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	TRIES = 3, /* of a read whose fault may pass, PAUSE_MS apart */
	PAUSE_MS = 1000,
	PAUSE_STEP_MS = 50,
	REPEATS = 1000,		/* so many EINTR or EAGAIN in a row are an error */
	SOME_BYTES = 32 * 1024, /* checked at a time, on the stack */
};

struct read *read_of(struct io_work *work)
{
	return (struct read *)((char *)work - offsetof(struct read, work));
}

/* Fills @fault for @error of reading a file: FAULT_DATA if its contents cannot be served. Always
 * false. */
static bool read_fault(struct fault *fault, int error)
{
	fault_errno(fault, error, "", "%s", strerror(error));
	if (error == EBADMSG || error == ERANGE)
		fault->code = FAULT_DATA;
	return false;
}

/* ---- bytes ---- */

/*
 * Reads bytes [@at, @at + @n) of a plain file to @to. If it is direct, whole blocks go to @staging
 * first, which has room for two more. With O_DIRECT a read continues at the sector in which the
 * last one stopped: at the end of the file it makes no progress, at a damaged sector it gets the
 * error.
 */
static bool read_plain(struct files *files, struct file *file, uint64_t at, uint64_t n, void *to,
	char *staging, struct fault *fault)
{
	bool direct = atomic_load(&file->direct);
	uint64_t skip = direct ? at % file->align : 0, have = 0;
	uint64_t want = direct ? (skip + n + file->align - 1) / file->align * file->align : n;
	char *into = direct ? staging : to;

	for (unsigned repeats = 0; have < skip + n;) {
		uint64_t from = direct ? have / IO_SECTOR * IO_SECTOR : have;
		ssize_t got = pread(file->fd, into + from, want - from, (off_t)(at - skip + from));

		if (got < 0 && (errno == EINTR || errno == EAGAIN) && ++repeats < REPEATS)
			continue;
		if (got < 0 && errno == EINVAL && direct) {
			/* open() accepted O_DIRECT, but a coarser alignment is needed. */
			fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_DIRECT);
			files_buffer(files, file);
			return read_plain(files, file, at, n, to, staging, fault);
		}
		if (got < 0)
			return read_fault(fault, errno);
		if (from + (uint64_t)got <= have)
			return fault_set(fault, FAULT_DATA, "",
				"ends before this window: it was truncated; " PHRASE_RESTORE);
		have = from + (uint64_t)got;
		repeats = 0;
	}
	if (direct)
		memcpy(to, staging + skip, n);
	return true;
}

/* Reads tokens [@token, @token + @n) of the window's shard to @to. */
static bool read_tokens(struct read *read, struct file *file, uint64_t token, uint64_t n, void *to,
	char *staging, struct fault *fault)
{
	const struct dataset *d = read->window.dataset;
	uint64_t data_at = file ? file->data_at : dataset_data_at(d, read->window.shard);

	if (file && !file->plain)
		return shard_read(file->shard, token, n, to, fault);
	if (!read->stored)
		return read_plain(&read->reader->files, file, data_at + token * d->token_bytes,
			n * d->token_bytes, to, staging, fault);

	struct object object = dataset_object(d, read->window.shard);

	if (d->config->shuffle == ORDER_NONE)
		object.block = STORE_BLOCK_BYTES;
	return store_read(read->reader->stores, &object, data_at + token * d->token_bytes, to,
		n * d->token_bytes, fault);
}

/* ---- checks ---- */

/* Reads the window's tokens again, into memory that no client can write to. */
static bool check_again(struct read *read, struct file *file, struct fault *fault)
{
	struct {
		_Alignas(IO_ALIGN) char staging[SOME_BYTES + 2 * IO_ALIGN];
		_Alignas(IO_ALIGN) char bytes[SOME_BYTES];
	} some;
	const struct reader_read *window = &read->window;
	const struct dataset *d = window->dataset;
	uint64_t most = SOME_BYTES / d->token_bytes;

	for (uint64_t done = 0, n; done < window->tokens; done += n) {
		n = window->tokens - done < most ? window->tokens - done : most;
		if (!read_tokens(
			    read, file, window->token + done, n, some.bytes, some.staging, fault))
			return false;
		uint64_t i = vocab_first_refused(d, some.bytes, n);

		if (i < n)
			return vocab_refuse(d, window->token + done + i,
				tokens_value(some.bytes, i, d->token_bytes), fault);
		memcpy((char *)window->to + done * d->token_bytes, some.bytes, n * d->token_bytes);
	}
	return true;
}

/* The file changed if its looks say so. Then a fault of its contents is a consequence. */
static void look(struct read *read, const struct file *file, bool by_name)
{
	struct fault changed;

	if (!look_again(file, &changed) || (by_name && !look_by_name(file, &changed)))
		read->fault = changed;
}

static bool is_of_contents(const struct fault *fault)
{
	return fault->code == FAULT_DATA || fault->code == FAULT_TOKEN;
}

/* ---- a read ---- */

/* A plain shard in a store need not be opened. */
static bool needs_file(const struct reader_read *window)
{
	const struct dataset *d = window->dataset;

	return !d->bucket || d->marked || !dataset_is_plain(d, window->shard);
}

static bool read_window(struct read *read, struct file *file)
{
	const struct reader_read *window = &read->window;
	struct fault *fault = &read->fault;
	bool good = read_tokens(read, file, window->token, window->tokens, window->to,
			    read->staging, fault) &&
		    (tokens_pass(window) || check_again(read, file, fault)) &&
		    annotations_write(window, file ? file->shard : NULL, fault);

	/* A fault may be left of a frame that was good when it was read again. */
	if (good)
		fault->code = FAULT_NONE;
	return good || is_of_contents(fault);
}

/* False: read->fault. */
static bool try_read(struct read *read)
{
	struct files *files = &read->reader->files;
	const struct fault *fault = &read->fault;
	struct file *file = NULL;

	if (needs_file(&read->window) && !(file = files_open(read->reader, read)))
		return false;
	/* One may be left of an index that was good when it was read again. */
	read->fault.code = FAULT_NONE;
	bool by_name = read->by_name || (file && atomic_exchange(&file->due, false));

	if (read_window(read, file) && file)
		look(read, file, by_name);
	if (!file)
		return fault->code == FAULT_NONE;
	/* A file that changed stays in the table: opened again, it might pass for the one that was
	 * listed. Until its name is restored, each look is also by name. */
	if (fault->code == FAULT_CHANGED)
		atomic_store(&file->due, by_name);
	else if (fault->code != FAULT_NONE && fault->error != 0)
		files_forget(files, file);
	files_put(files, file);
	return fault->code == FAULT_NONE;
}

/* Is it a fault that may pass by itself? All others stop the stream. */
static bool passes(const struct fault *fault)
{
	int error = fault->error;

	if (fault->code == FAULT_CHANGED)
		return false;
	return fault->code == FAULT_MEMORY || error == EIO || error == EAGAIN || error == EINTR ||
	       error == ENOMEM || error == ESTALE || error == ETIMEDOUT;
}

/* False: nobody needs the read any more. */
static bool rest(const struct read *read)
{
	const struct timespec step = {0, PAUSE_STEP_MS * 1000000L};

	for (unsigned ms = 0; ms < PAUSE_MS; ms += PAUSE_STEP_MS) {
		if (read_is_over(read) || atomic_load(&read->reader->closing))
			return false;
		nanosleep(&step, NULL);
	}
	return true;
}

int64_t slow_read(struct io_work *work)
{
	struct read *read = read_of(work);
	struct fault *fault = &read->fault;
	bool reopened = false;

	if (read->stored)
		store_on_behalf(read->window.session, read->number);
	for (unsigned tries = 1, repeats = 0;; tries++) {
		if (read_is_over(read)) {
			fault_errno(fault, ECANCELED, "", "cancelled");
			return -1;
		}
		if (try_read(read))
			return 0;
		atomic_store(&read->ticks, 0);
		/* An NFS server that forgot the file may still know the path. And a frame may be
		 * decoded on behalf of a session that leaves. */
		bool again =
			(fault->error == ESTALE && fault->code != FAULT_CHANGED && !reopened) ||
			(fault->error == ECANCELED && read->stored && ++repeats < REPEATS);

		reopened |= fault->error == ESTALE;
		if (again)
			tries--;
		else if (!passes(fault) || tries == TRIES || !rest(read))
			return -1;
	}
}
