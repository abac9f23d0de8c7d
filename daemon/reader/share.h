/*
 * Each stream's share of the reader. Storage can stop answering for minutes, and streams may use
 * different storage. Without shares, the reads of one such stream would soon occupy all threads,
 * open files and memory, and every other stream would stop with it.
 *
 * A stream is slow while one of its reads or openings has taken more than two ticks. One stream may
 * use three quarters of the entries of the table of open shards that other streams leave, so
 * several that hang together leave some to the others. All slow streams together may use one
 * quarter. Reads that need more wait in their stream's own queue. For the pool's threads see
 * pool.h, for the cache of decoded frames daemon/shard/frames.h.
 */
#ifndef TOKEND_SHARE_H
#define TOKEND_SHARE_H

#include "daemon/io/pool.h"
#include "daemon/reader/files.h"
#include "daemon/reader/reader.h"

enum { SHARE_TICKS = 2 };

struct share {
	struct pool_share pool, away; /* for local works, and for those that wait for stores */
	unsigned files;		      /* entries of the table that its reads use */
	struct frames *frames;	      /* its share of the cache of decoded frames, or NULL */
	struct reads parked;	      /* waiting for an entry */
	TAILQ_ENTRY(share) waiting;   /* while any read is parked */
	bool slow;
	struct reader_hang hang; /* as of the last tick; ticks is 0 unless slow */
};

TAILQ_HEAD(shares_waiting, share);

struct shares {
	struct share *share;
	unsigned count, slow; /* all of them; those that are slow */
	struct shares_waiting waiting;
};

/* False: out of memory; call shares_free() in any case. @frames is borrowed; it may be NULL. */
bool shares_init(struct shares *shares, unsigned count, struct frames *frames);
void shares_free(struct shares *shares);
uint64_t shares_memory(unsigned count);

/* The most entries of the table @files that the share may use. */
unsigned share_files_most(
	const struct shares *shares, const struct share *share, const struct files *files);

/*
 * A tick has three steps. shares_tick() resets `hang` of all shares. share_tick(), for each work,
 * counts a tick if the work of @file was begun. shares_ticked() finds the slow shares and reports
 * changes to the backend.
 */
void shares_tick(struct shares *shares);
void share_tick(struct share *share, struct io_work *work, const struct file *file);
void shares_ticked(struct shares *shares, const struct io_ops *ops, void *backend);

#endif
