#include "daemon/reader/end.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

enum { TRIES = 3 }; /* of a read whose fault may pass, with a pause after each */
#define PAUSE_NS INT64_C(1000000000)

/* Is it a fault that may pass by itself? All others stop the stream. */
static bool passes(const struct fault *fault)
{
	int error = fault->error;

	if (fault->code == FAULT_CHANGED)
		return false;
	return fault->code == FAULT_MEMORY || error == EIO || error == EAGAIN || error == EINTR ||
	       error == ENOMEM || error == ESTALE || error == ETIMEDOUT;
}

/*
 * An NFS server that forgot the file may still know the path. The shard is opened again, which
 * shows whether it is the same file.
 */
static bool begins_again(struct read *read)
{
	if (read->fault.error != ESTALE || read->fault.code == FAULT_CHANGED || read->reopened)
		return false;
	read->reopened = true;
	read->fault.code = FAULT_NONE;
	return true;
}

void read_finish(struct reader *reader, struct read *read)
{
	struct fault *fault = &read->fault;

	assert(!read->file);
	if (fault->code != FAULT_NONE && begins_again(read)) {
		read_push(read, READ_AGAIN, &reader->again);
		return;
	}
	if (fault->code != FAULT_NONE && !read->cancelled && passes(fault) &&
		++read->attempts < TRIES) {
		read->due_ns = io_now_ns() + PAUSE_NS;
		read_push(read, READ_AGAIN, &reader->paused);
		return;
	}
	read_push(read, READ_DONE, &reader->finished);
}

static void read_leave(struct reader *reader, struct read *read)
{
	if (read->file)
		files_put(&reader->files, read->file);
	read->file = NULL;
}

void read_fail(struct reader *reader, struct read *read)
{
	assert(read->fault.code != FAULT_NONE);
	read_leave(reader, read);
	read_finish(reader, read);
}

void read_cancelled(struct reader *reader, struct read *read)
{
	fault_errno(&read->fault, ECANCELED, "", "cancelled");
	read_fail(reader, read);
}

void read_hold(struct reader *reader, struct read *read)
{
	struct file *file = read->file;

	if (read->stored) {
		read_leave(reader, read);
		read_finish(reader, read);
		return;
	}
	/* No client can write to staging, so its bytes are as they were read. */
	if (file->plain && read->staged && !file->watch.in_flight)
		look_keep(&file->watch.look[0], read->start, read->staging, read->have);
	read_push(read, READ_ENDED, &file->watch.ended);
	watch_add(&reader->watched, file, file->plain ? read->start + read->skip : SIZE_MAX);
}

/* ---- looking ---- */

static void reader_warn(struct reader *reader, const struct file *file)
{
	if (reader->warnings++ > 0)
		return;
	snprintf(reader->warning, sizeof(reader->warning),
		"%.800s: its ctime changed while it was open (mode, owner, links or name), but "
		"its sampled bytes did not; reading continues",
		file->path);
}

/* Ends the held reads after a look, by its outcome in file->fault. */
static void file_looked(struct reader *reader, struct file *file)
{
	struct reads held = STAILQ_HEAD_INITIALIZER(held);
	bool same = file->fault.code == FAULT_NONE;
	struct read *read;

	STAILQ_CONCAT(&held, &file->watch.held);
	/* A file that changed stays in the table: opened again, it might pass for the one that was
	 * listed. */
	if (!same && file->fault.code != FAULT_CHANGED)
		files_forget(file);
	if (same && file->watch.touched)
		reader_warn(reader, file);
	watch_end(&reader->watched, file);
	while ((read = reads_take(&held))) {
		if (!same)
			read->fault = file->fault;
		read_leave(reader, read);
		read_finish(reader, read);
	}
}

static void look_done(void *owner, struct io_work *work)
{
	struct reader *reader = owner;

	file_looked(reader, watch_file(work));
}

bool reader_look(struct reader *reader)
{
	bool submitted = false;
	struct file *file;

	while ((file = watch_next(&reader->watched))) {
		if (watch_look(file)) {
			file_looked(reader, file);
			continue;
		}
		file->watch.work.done = look_done;
		reader_submit(reader, &file->watch.work, file->share, false);
		submitted = true;
	}
	return submitted;
}
