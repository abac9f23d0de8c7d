#include "daemon/reader/watch.h"

#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>

struct stat stat_of(const struct statx *found)
{
	return (struct stat){
		.st_dev = makedev(found->stx_dev_major, found->stx_dev_minor),
		.st_ino = found->stx_ino,
		.st_mode = found->stx_mode,
		.st_nlink = found->stx_nlink,
		.st_uid = found->stx_uid,
		.st_gid = found->stx_gid,
		.st_size = (off_t)found->stx_size,
		.st_blksize = found->stx_blksize,
		.st_blocks = (blkcnt_t)found->stx_blocks,
		.st_mtim = {.tv_sec = found->stx_mtime.tv_sec, .tv_nsec = found->stx_mtime.tv_nsec},
		.st_ctim = {.tv_sec = found->stx_ctime.tv_sec, .tv_nsec = found->stx_ctime.tv_nsec},
	};
}

/* Begins to watch a side file, which must still be the one that was compared with the list. */
static bool side_begin(struct file *file, const struct shard_side *side)
{
	struct watch *w = &file->watch;
	struct statx found;

	assert(w->looks >= 1 && w->looks <= SHARD_SIDES);
	if (statx(side->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) < 0) {
		int error = errno;

		return fault_errno(&file->fault, error, "", "%s%s", side->what, strerror(error));
	}
	struct stat st = stat_of(&found);

	if (bytes_id(&st) != side->id)
		return fault_set(
			&file->fault, FAULT_DATA, "", "%s" PHRASE_CHANGED_OPENING, side->what);
	look_begin(&w->look[w->looks++], side->fd, side->what, &found);
	return true;
}

void watch_open(struct file *file)
{
	assert(file->fd >= 0 && !file->watch.queued && !file->watch.in_flight);
	look_begin(&file->watch.look[0], file->fd, "", &file->found);
	file->watch.looks = 1;
}

bool watch_sides(struct file *file)
{
	struct shard_side side[SHARD_SIDES];
	unsigned n = file->shard ? shard_sides(file->shard, side) : 0;

	assert(n <= SHARD_SIDES);
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
		w->without_waiting = w->without_waiting && io_knows_nowait(w->look[i].fd);
}

void watch_add(struct watched *watched, struct file *file, uint64_t at)
{
	struct watch *w = &file->watch;

	assert(file->users > 0);
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
	assert(STAILQ_EMPTY(&file->watch.held) && !STAILQ_EMPTY(&file->watch.ended));
	STAILQ_CONCAT(&file->watch.held, &file->watch.ended);
	return file;
}

/* ---- looking ---- */

/* Takes a sample before the look that makes it count. False: there is none yet, and taking one
 * would block. */
static bool add_sample(struct watch *w, unsigned i, bool wait)
{
	struct look *look = &w->look[i];

	if (look->samples == LOOK_SAMPLES)
		return true;
	if (look->direct && !wait) /* O_DIRECT waits for the device */
		return look->samples != 1 && look->taken > 0;
	while (look->direct && look->taken < LOOK_SAMPLES)
		if (look_sample(look, SIZE_MAX, true) != LOOK_SAMPLED)
			break;
	/* Bytes that cannot be read now are left out: a read of them will fail. */
	return look_sample(look, i == 0 && look->samples == 0 ? w->at : SIZE_MAX, wait) !=
		       LOOK_MUST_WAIT ||
	       look->samples > 0;
}

/* False: only the ctime differs, so samples must be compared; or there are none yet. */
static bool look_quickly(struct file *file)
{
	struct watch *w = &file->watch;
	enum look_result result = LOOK_SAME;
	struct look_state now;

	file->fault.code = FAULT_NONE;
	for (unsigned i = 0; i < w->looks && result == LOOK_SAME; i++) {
		if (!add_sample(w, i, false))
			return false;
		result = look_again(&w->look[i], &now, &file->fault);
	}
	assert((result == LOOK_FAULT) == (file->fault.code != FAULT_NONE));
	return result != LOOK_TOUCHED;
}

/*
 * Does the shard's name still lead to the open file? The file itself is unchanged if another one
 * was moved to its name, or its directory. Nothing follows from a name that cannot be
 * looked up now.
 */
static bool leads_to(struct file *file)
{
	const struct look_state *was = &file->watch.look[0].was;
	struct statx now;

	if (statx(AT_FDCWD, file->path, 0, STATX_INO, &now) == 0
			? now.stx_ino == was->inode &&
				  makedev(now.stx_dev_major, now.stx_dev_minor) == was->device
			: errno != ENOENT && errno != ENOTDIR)
		return true;
	return fault_set(&file->fault, FAULT_CHANGED, "",
		"its name no longer leads to the file that is open: it was replaced, moved or "
		"removed");
}

/* In the pool. */
static int64_t look_thoroughly(struct io_work *work)
{
	struct file *file = watch_file(work);
	struct watch *w = &file->watch;
	struct look_state now;

	file->fault.code = FAULT_NONE;
	for (unsigned i = 0; i < w->looks; i++) {
		add_sample(w, i, true);
		enum look_result result = look_again(&w->look[i], &now, &file->fault);

		if (result == LOOK_TOUCHED) {
			result = look_compare(&w->look[i], &now, &file->fault);
			w->touched = w->touched || result == LOOK_TOUCHED;
		}
		if (result == LOOK_FAULT)
			return -1;
	}
	return !w->by_name || leads_to(file) ? 0 : -1;
}

bool watch_look(struct file *file)
{
	struct watch *w = &file->watch;

	assert(!w->queued && !w->in_flight && file->fd == w->look[0].fd);
	if (w->without_waiting && !w->due && look_quickly(file))
		return true;
	w->by_name = w->due;
	w->due = false;
	w->in_flight = true;
	w->work = (struct io_work){.call = look_thoroughly, .fd = file->fd};
	return false;
}

struct file *watch_file(struct io_work *work)
{
	return (struct file *)((char *)work - offsetof(struct file, watch.work));
}

void watch_end(struct watched *watched, struct file *file)
{
	struct watch *w = &file->watch;

	assert(STAILQ_EMPTY(&w->held));
	w->due |= w->by_name && file->fault.code != FAULT_NONE; /* until its name is restored */
	w->in_flight = w->touched = w->by_name = false;
	if (!STAILQ_EMPTY(&w->ended))
		watch_add(watched, file, SIZE_MAX);
}
