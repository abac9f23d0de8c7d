/*
 * The threads that may hang: each takes one work after the other and does it with plain system
 * calls. What is done lies ready for the data thread, which is told through a descriptor, so it can
 * wait for this and for other things at once.
 *
 * The works of each stream are a share, and shares take turns. A share has POOL_THREADS at most,
 * and POOL_SPARE more than that are there, so one whose storage stops to answer leaves some to
 * others. Once it is known to be slow, its threads count no more: others get as many as if it were
 * not there, and slow shares together POOL_SLOW.
 */
#ifndef TOKEND_POOL_H
#define TOKEND_POOL_H

#include "daemon/io/io.h"

#include <sys/queue.h>

enum {
	/* A file system with the latency of an object store, 50 ms, then still gives 640 windows a
	   second. */
	POOL_THREADS = 32,
	POOL_SPARE = 8,
	POOL_SLOW = POOL_THREADS / 4,
	POOL_MOST = LIMIT_READS, /* no more works can be under way */
};

struct works {
	struct io_work *first, **end;
	unsigned count;
};

void works_clear(struct works *works);
void works_add(struct works *works, struct io_work *work);
struct io_work *works_take(struct works *works); /* NULL: none */
void works_move(struct works *to, struct works *from);

/* All of it is the pool's, under its lock. Begins as zeros, by pool_share_init(). */
struct pool_share {
	struct works todo;
	TAILQ_ENTRY(pool_share) turn; /* while there is something to do */
	unsigned busy;		      /* threads at work for it */
	bool slow;
};

void pool_share_init(struct pool_share *share);

/* Closes what is to be closed before, which may hang. */
void opening_make_room(struct reader_opening *opening);

struct pool;

struct pool *pool_open(const char **what, int *error);
void pool_close(struct pool *pool); /* every work must have been taken */
/* An eventfd, written to when pool_take() has something new. Whoever waits on it reads it, then
 * takes. */
int pool_news_fd(const struct pool *pool);
/* Each to its share. */
void pool_give(struct pool *pool, struct works *works);
void pool_slow(struct pool *pool, struct pool_share *share, bool slow);
/* Appends what is done to @done. Returns whether there was a kick since the last call. */
bool pool_take(struct pool *pool, struct works *done);
void pool_kick(struct pool *pool); /* any thread */

#endif
