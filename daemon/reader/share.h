/*
 * What each stream may have of the disk, so that storage of one that does not answer leaves
 * something to the others. A stream with a read or an opening that was begun more than two ticks
 * ago is slow. Of the entries of the table of open shards, one stream may use three quarters of
 * what slow streams leave, and slow streams together one quarter; of the pool's threads see pool.h,
 * of decoded frames bytes.h. Reads that would need more wait here, and each stream has its own
 * queue: nobody waits for another stream's reads.
 */
#ifndef TOKEND_SHARE_H
#define TOKEND_SHARE_H

#include "daemon/io/pool.h"
#include "daemon/reader/files.h"

enum { SHARE_TICKS = 2 };

struct share {
	struct pool_share pool;
	unsigned files;		    /* entries of the table that its reads use */
	struct frames *frames;	    /* its share of the cache of decoded frames, or NULL */
	struct requests parked;	    /* that wait for one */
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

/* A tick: what was late at the last one is forgotten, */
void shares_tick(struct shares *shares);
/* each work of @file that was begun is a tick older, */
void share_tick(struct share *share, struct io_work *work, const struct file *file);
/* and then it is known who is slow. Tells the backend what has changed. */
void shares_ticked(struct shares *shares, const struct io_ops *ops, void *backend);

#endif
