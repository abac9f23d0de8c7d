#include "daemon/reader/watch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

bool file_knows_nowait(int fd)
{
	char byte;
	struct iovec to = {.iov_base = &byte, .iov_len = 1};

	/* EINVAL: O_DIRECT, and not aligned. */
	return preadv2(fd, &to, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN || errno == EINVAL;
}

/* The file was compared with what was listed before it was sampled: it must still be that one. */
static bool side_begin(struct file *file, const struct shard_side *side)
{
	struct watch *w = &file->watch;
	struct statx found;

	if (statx(side->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) < 0)
		return bytes_why(file->why, sizeof(file->why), "%s%s", side->what, strerror(errno));
	struct stat st = stat_of(&found);

	errno = 0;
	if (bytes_id(&st) != side->id)
		return bytes_why(file->why, sizeof(file->why),
			"%sit was changed while the shard was opened", side->what);
	look_begin(&w->look[w->looks++], side->fd, side->what, &found);
	return true;
}

void watch_open(struct file *file)
{
	look_begin(&file->watch.look[0], file->fd, "", &file->opening.found);
	file->watch.looks = 1;
}

bool watch_sides(struct file *file)
{
	struct shard_side side[SHARD_SIDES];
	unsigned n = file->source ? shard_sides(file->source, side) : 0;

	file->watch.looks = 1;
	for (unsigned i = 0; i < n; i++)
		if (!side_begin(file, &side[i]))
			return false;
	return true;
}

void watch_begin(struct file *file)
{
	struct watch *w = &file->watch;

	w->look[0].direct = file->direct;
	w->without_waiting = file->nowait;
	for (unsigned i = 1; i < w->looks; i++)
		w->without_waiting = w->without_waiting && file_knows_nowait(w->look[i].fd);
}

void watch_add(struct watched *watched, struct file *file, uint64_t at)
{
	struct watch *w = &file->watch;

	if (w->queued || w->in_flight)
		return;
	w->queued = true;
	w->at = at;
	STAILQ_INSERT_TAIL(watched, file, watch.link);
}

struct file *watch_next(struct watched *watched)
{
	struct file *file = STAILQ_FIRST(watched);

	if (!file)
		return NULL;
	STAILQ_REMOVE_HEAD(watched, watch.link);
	file->watch.queued = false;
	assert(STAILQ_EMPTY(&file->watch.held));
	STAILQ_CONCAT(&file->watch.held, &file->watch.ended);
	return file;
}

/* ---- looking ---- */

static void verdict(struct watch *w, enum look_result result, int error)
{
	w->fault = result == LOOK_FAILED    ? READER_ERRNO
		   : result == LOOK_CHANGED ? READER_CHANGED
					    : READER_OK;
	w->error = result == LOOK_FAILED ? error : 0;
}

/* One more, before the look that makes it count. False: there is none yet, and to take it means to
 * wait. */
static bool add_sample(struct watch *w, unsigned i, bool wait)
{
	struct look *look = &w->look[i];

	if (look->samples == LOOK_SAMPLES)
		return true;
	if (look->direct && !wait) /* it would wait for the device; the first read left a sample */
		return look->samples != 1 && look->taken > 0;
	while (look->direct && look->taken < LOOK_SAMPLES)
		if (look_sample(look, SIZE_MAX, true) != 0)
			break;
	/* Bytes that cannot be read now are left out: whoever wants them will be told. */
	return look_sample(look, i == 0 && look->samples == 0 ? w->at : SIZE_MAX, wait) != EAGAIN ||
	       look->samples > 0;
}

/* False: the ctime alone differs, and samples have to be compared; or there are none yet. */
static bool look_quickly(struct watch *w)
{
	enum look_result result = LOOK_SAME;
	struct look_state now;

	w->why[0] = 0;
	for (unsigned i = 0; i < w->looks && result == LOOK_SAME; i++) {
		if (!add_sample(w, i, false))
			return false;
		result = look_again(&w->look[i], &now, w->why, sizeof(w->why));
	}
	if (result == LOOK_TOUCHED)
		return false;
	verdict(w, result, errno);
	return true;
}

/* In the pool. */
static int64_t look_thoroughly(struct io_work *work)
{
	struct watch *w = &work->look->watch;
	enum look_result result = LOOK_SAME;
	struct look_state now;

	w->why[0] = 0;
	for (unsigned i = 0; i < w->looks && (result == LOOK_SAME || result == LOOK_TOUCHED); i++) {
		add_sample(w, i, true);
		result = look_again(&w->look[i], &now, w->why, sizeof(w->why));
		if (result != LOOK_TOUCHED)
			continue;
		result = look_compare(&w->look[i], &now, w->why, sizeof(w->why));
		w->touched = w->touched || result == LOOK_TOUCHED;
	}
	verdict(w, result, errno);
	return 0;
}

bool watch_look(struct file *file)
{
	struct watch *w = &file->watch;

	if (w->without_waiting && look_quickly(w))
		return true;
	w->in_flight = true;
	w->work = (struct io_work){.call = look_thoroughly, .look = file, .fd = file->fd};
	return false;
}

void watch_end(struct watched *watched, struct file *file)
{
	struct watch *w = &file->watch;

	w->in_flight = w->touched = false;
	if (!STAILQ_EMPTY(&w->ended))
		watch_add(watched, file, SIZE_MAX);
}
