/*
 * The threads that may hang: each takes one work after the other and does it with plain system
 * calls. The data thread takes what is done. It is told through a descriptor, so it can wait for
 * this and for other things at once.
 *
 * The works of each stream are a share, and shares take turns. A share has at most POOL_THREADS
 * threads, and there are POOL_SPARE more than that, so a share whose storage stops answering leaves
 * some to others. Once a share is known to be slow, its threads no longer count: others get as many
 * as if it did not exist, and all slow shares together get POOL_SLOW.
 */
#ifndef TOKEND_POOL_H
#define TOKEND_POOL_H

#include "daemon/io/io.h"
#include "proto/limits.h"

#include <sys/queue.h>

enum {
	/* A file system with the latency of an object store, 50 ms, then still gives 640 windows a
	   second. */
	POOL_THREADS = 32,
	POOL_SPARE = 8,
	POOL_SLOW = POOL_THREADS / 4,
	POOL_MOST = LIMIT_READS, /* no more works can be under way */
};

_Static_assert(POOL_SLOW >= 1 && POOL_THREADS + POOL_SPARE + POOL_SLOW <= POOL_MOST,
	"every share may have a thread");

struct works {
	struct io_work *first, **end;
	unsigned count;
};

void works_clear(struct works *works);
void works_add(struct works *works, struct io_work *work);
struct io_work *works_take(struct works *works); /* NULL: none */
void works_move(struct works *to, struct works *from);

/* The pool owns all members, under its lock. Initialise with pool_share_init(). */
struct pool_share {
	struct works todo;
	TAILQ_ENTRY(pool_share) turn; /* while there is something to do */
	unsigned busy;		      /* threads that work for it */
	bool slow;
};

void pool_share_init(struct pool_share *share);

struct pool;

/* NULL: as io_ops.open() says. */
struct pool *pool_open(struct fault *fault);
void pool_close(struct pool *pool); /* every work must have been taken */
/* An eventfd, written to when pool_take() has something new. Whoever waits for it reads it, then
 * takes. */
int pool_news_fd(const struct pool *pool);
/* Gives each work to its share. */
void pool_give(struct pool *pool, struct works *works);
void pool_slow(struct pool *pool, struct pool_share *share, bool slow);
/* Appends what is done to @done. Returns whether there was a kick since the last call. */
bool pool_take(struct pool *pool, struct works *done);
void pool_kick(struct pool *pool); /* any thread */

#endif
