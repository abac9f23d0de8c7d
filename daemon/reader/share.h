/*
 * Shares: what each stream may have of the reader. Storage can stop answering for minutes, and
 * streams may lie on different storage. Without shares the reads of one such stream would soon hold
 * all threads, open files and memory, and every other stream would stop with it.
 *
 * A stream is slow while a read or an opening that was begun more than two ticks ago has not come
 * back. Of the entries of the table of open shards, one stream may use three quarters of what slow
 * streams leave, and all slow streams together one quarter. For the pool's threads see pool.h, for
 * the cache of decoded frames bytes.h. Reads that would need more wait in their stream's own queue.
 */
#ifndef TOKEND_SHARE_H
#define TOKEND_SHARE_H

#include "daemon/io/pool.h"
#include "daemon/reader/files.h"
#include "daemon/reader/reader.h"

enum { SHARE_TICKS = 2 };

struct share {
	struct pool_share pool;
	unsigned files;		    /* entries of the table that its reads use */
	struct frames *frames;	    /* its share of the cache of decoded frames, or NULL */
	struct reads parked;	    /* that wait for one */
	TAILQ_ENTRY(share) waiting; /* while any is parked */
	bool slow;
	struct reader_hang hang; /* the oldest at the last tick; ticks 0: none is late */
};

TAILQ_HEAD(shares_waiting, share);

struct shares {
	struct share *share;
	unsigned count, slow; /* slow: how many of them */
	struct shares_waiting waiting;
};

/* @frames, which may be NULL, stays the caller's. */
bool shares_init(struct shares *shares, unsigned count, struct frames *frames);
void shares_free(struct shares *shares);
uint64_t shares_memory(unsigned count);

/* How many entries of a table of @files the share may use. */
unsigned share_files_most(const struct shares *shares, const struct share *share, unsigned files);

/*
 * A tick, in three steps: shares_tick() forgets what was late at the last one; share_tick() makes a
 * work of @file a tick older if it was begun; shares_ticked() then knows who is slow, and tells the
 * backend what has changed.
 */
void shares_tick(struct shares *shares);
void share_tick(struct share *share, struct io_work *work, const struct file *file);
void shares_ticked(struct shares *shares, const struct io_ops *ops, void *backend);

#endif
