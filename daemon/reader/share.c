#include "daemon/reader/share.h"
#include "daemon/shard/frames.h"

#include <assert.h>
#include <stdlib.h>

bool shares_init(struct shares *shares, unsigned count, struct frames *frames)
{
	shares->count = count ? count : 1;
	shares->share = calloc(shares->count, sizeof(*shares->share));
	TAILQ_INIT(&shares->waiting);
	if (!shares->share)
		return false;
	for (unsigned i = 0; i < shares->count; i++) {
		pool_share_init(&shares->share[i].pool, false);
		pool_share_init(&shares->share[i].away, true);
		STAILQ_INIT(&shares->share[i].parked);
		if (frames && !(shares->share[i].frames = frames_share(frames)))
			return false;
	}
	return true;
}

void shares_free(struct shares *shares)
{
	for (unsigned i = 0; shares->share && i < shares->count; i++)
		frames_free(shares->share[i].frames);
	free(shares->share);
}

uint64_t shares_memory(unsigned count)
{
	return (count ? count : 1) * (uint64_t)sizeof(struct share);
}

/* ---- entries of the table of open shards ---- */

static unsigned slow_files(const struct shares *shares)
{
	unsigned files = 0;

	for (unsigned i = 0; shares->slow > 0 && i < shares->count; i++)
		files += shares->share[i].slow ? shares->share[i].files : 0;
	return files;
}

enum { SHARED_FILES = 4 }; /* a smaller table is not shared out: shards could not be replaced */

unsigned share_files_most(
	const struct shares *shares, const struct share *share, const struct files *files)
{
	unsigned quarter = files->count / 4 ? files->count / 4 : 1;
	unsigned left = files->count - (files->in_use - share->files);

	assert(share->files <= files->in_use && files->in_use <= files->count);
	if (!share->slow)
		return left > 1 && files->count >= SHARED_FILES ? left - (left + 3) / 4 : left;

	unsigned slow = slow_files(shares);

	assert(slow >= share->files);
	unsigned others = slow - share->files;

	return others < quarter ? quarter - others : 0;
}

/* ---- slow storage ---- */

void shares_tick(struct shares *shares)
{
	for (unsigned i = 0; i < shares->count; i++)
		shares->share[i].hang = (struct reader_hang){0};
}

void share_tick(struct share *share, struct io_work *work, const struct file *file)
{
	if (!work->begun || ++work->ticks <= SHARE_TICKS || work->ticks <= share->hang.ticks)
		return;
	assert(file && file->users > 0);
	share->hang = (struct reader_hang){
		.ticks = work->ticks, .dataset = file->dataset, .shard = file->number};
}

void shares_ticked(struct shares *shares, const struct io_ops *ops, void *backend)
{
	shares->slow = 0;
	for (unsigned i = 0; i < shares->count; i++) {
		struct share *share = &shares->share[i];
		bool slow = share->hang.ticks > 0;

		shares->slow += slow;
		if (share->slow != slow)
			ops->slow(backend, &share->pool, slow);
		if (share->slow != slow && share->frames)
			frames_slow(share->frames, slow);
		share->slow = slow;
	}
}
